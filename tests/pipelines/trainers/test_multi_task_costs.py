"""What a multi-task stage will cost, against the stage's own sampler, the model that it builds, and a training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.load import loads
from pipelines.runs.hardware import Device
from pipelines.runs.planning.plan import plan
from pipelines.runs.run import run
from pipelines.trainers.multi_task_model import SharedBody
from pipelines.trainers.multi_task_sampling import MixtureSampler, TaskMixture
from tests import tiny

CPU = Device("2 CPU cores", "cpu", 2, "no", {"no": 1e9, "bf16": 2e9})
SIZES = {"mood": 26, "size": 12, "pair": 7}
RECIPE = """\
name: several
model: {{architecture: {architecture}}}
tokenizer: {{train: wordpiece, vocab_size: 300}}
launch: {{num_processes: 1}}
stages:
  - stage: multi_task
    id: all
    tasks:
      - {{id: mood, task: {{kind: classification, columns: [text], label: mood, labels: [bad, fine, good], train: mood.csv, validation: mood.csv}}, max_length: 24}}
      - {{id: size, task: {{kind: regression, columns: [text], label: size, train: size.csv, validation: size.csv}}, max_length: 16}}
      - {{id: pair, task: {{kind: classification, columns: [text, other], label: same, labels: ["no", "yes"], train: pair.csv, validation: pair.csv}}, max_length: 32}}
    {keys}
"""
ENCODER = "{preset: bert-tiny, hidden_size: 32, num_attention_heads: 2, intermediate_size: 64}"
TWO_EPOCHS = "arguments: {num_train_epochs: 2, global_batch_size: 6}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = [" ".join([text] * 9) for text in tiny.TEXTS]  # longer than any max_length
    for name, count in SIZES.items():
        lines = [
            f"{texts[row]},{texts[-row]},{('bad', 'fine', 'good')[row % 3]},{row % 4}.5,{'yes' if row % 2 else 'no'}"
            for row in range(count)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,other,mood,size,same", *lines]) + "\n")
    return tmp_path


def planned(folder: Path, keys: str, architecture: str = ENCODER) -> Any:
    recipe = loads(RECIPE.format(architecture=architecture, keys=keys), folder=folder)
    return plan(recipe, device=CPU).stages[0]


def lengths_of_parts(folder: Path, keys: str, epochs: int, lengths: Sequence[int] = (24, 16, 32)) -> list[int]:
    """Tokens of each part of the training, at the longest where no lengths are given, as the stage's own sampler orders
    them."""
    stage: Any = loads(RECIPE.format(architecture=ENCODER, keys=keys), folder=folder).stages[0]
    mixture = TaskMixture([range(size) for size in SIZES.values()], [False] * 3)
    part = stage.arguments.global_batch_size // stage.parts
    sampler = MixtureSampler(
        mixture,
        list(SIZES),
        stage.sampled,
        part=part,
        tasks_per_step=stage.parts,
        seed=1,
        epochs=epochs,
        most=stage.max_examples_per_task,
        by_length=False,
    )
    return [lengths[task] * part for epoch in range(epochs) for task in sampler.tasks(epoch)]


@pytest.mark.parametrize(
    "keys",
    [
        TWO_EPOCHS,
        TWO_EPOCHS + "\n    sampling: {name: temperature, temperature: 3}",
        TWO_EPOCHS + "\n    sampling: annealed",
        TWO_EPOCHS + "\n    sampling: {name: explicit, shares: {mood: 1, size: 5, pair: 1}}\n    tasks_per_step: 2",
        TWO_EPOCHS + "\n    gradient_surgery: pcgrad",
        TWO_EPOCHS + "\n    max_examples_per_task: 8",
    ],
)
def test_tasks_are_counted_as_often_as_they_are_sampled(folder: Path, keys: str) -> None:
    lengths = lengths_of_parts(folder, keys, epochs=2)
    parts = 3 if "pcgrad" in keys else 2 if "per_step" in keys else 1
    found = planned(folder, keys)
    assert found.tokens == sum(lengths)
    assert found.steps == len(lengths) // parts
    assert found.examples_per_step == 6


def test_each_task_is_counted_by_the_mean_length_of_its_own_texts(folder: Path) -> None:
    rows = [f"{'x' * 40},y,good,1.5,no"] * SIZES["mood"]
    (folder / "mood.csv").write_text("\n".join(["text,other,mood,size,same", *rows]) + "\n")
    found = planned(folder, TWO_EPOCHS)
    assert found.tokens == sum(lengths_of_parts(folder, TWO_EPOCHS, 2, lengths=(10, 16, 32)))
    assert (found.sequence_length, found.usual_length) == (32, 32)
    assert any("about 10 tokens a text of 'mood'" in note for note in found.notes)


def test_a_stage_takes_the_steps_that_were_planned(folder: Path) -> None:
    recipe = loads(RECIPE.format(architecture=ENCODER, keys=TWO_EPOCHS + "\n    tasks_per_step: 2"), folder=folder)
    found = plan(recipe, device=CPU).stages[0]
    run(recipe, folder / "run")
    events = map(json.loads, (folder / "run" / "events.jsonl").read_text().splitlines())
    assert [event["total"] for event in events if event["event"] == "progress"][-1] == found.steps


def test_heads_add_up_on_one_body(folder: Path) -> None:
    from pipelines.core.architecture_fields import resolve
    from pipelines.models.opening import build
    from pipelines.tuners.full import Full

    class Tokenizer:
        pad_token_id, bos_token_id, eos_token_id, cls_token_id, sep_token_id = 0, None, None, None, None

        def __len__(self) -> int:
            return 300

    stage: Any = loads(RECIPE.format(architecture=ENCODER, keys=TWO_EPOCHS), folder=folder).stages[0]
    heads = [entry.planned(entry.resolved(entry.id), [])[0] for entry in stage.tasks]
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 300}
    words = {"model_type": "finery", **resolve({"preset": "bert-tiny", **sizes})}
    models = [build(words, head, Tokenizer(), 0) for head in heads]
    weights = sum(each.numel() for each in SharedBody(models, Full(), list(SIZES)).once().values())
    found = planned(folder, TWO_EPOCHS)
    assert found.all_parameters == found.trainable_parameters == found.parameters["total"] == weights
    alone = planned(folder, TWO_EPOCHS.replace("}", ", max_steps: 3}"))
    assert alone.steps == 3
    assert found.memory.weights == 4 * weights


def test_answers_that_are_written_have_one_model(folder: Path) -> None:
    found = planned(folder, TWO_EPOCHS + "\n    form: text_to_text", "{preset: transformer-tiny}")
    assert "other heads" not in found.parameters
    assert found.target_length == 32
    assert found.flops > 0


def test_rows_that_cannot_be_counted_leave_it_open(folder: Path) -> None:
    (folder / "pair.csv").rename(folder / "pair.json")
    (folder / "pair.json").write_text('[{"text": "a", "other": "b", "same": "no"}]')
    text = RECIPE.format(architecture=ENCODER, keys=TWO_EPOCHS).replace("pair.csv", "pair.json")
    found = plan(loads(text, folder=folder), device=CPU).stages[0]
    assert found.flops is None
    assert found.seconds is None
    assert any("how many rows of 'pair' there are" in note for note in found.notes)


def test_a_task_without_rows_leaves_it_open(folder: Path) -> None:
    (folder / "size.csv").write_text("text,other,mood,size,same\n")
    assert planned(folder, TWO_EPOCHS).flops is None
    assert planned(folder, TWO_EPOCHS.replace("}", ", max_steps: 3}")).steps == 3
