"""The multi-task stage: one body under several heads, ordinary checkpoints a task, and recipes that cannot work refused.

Shares of tasks, by the papers' arithmetic done by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file

from pipelines.core.config import flatten
from pipelines.core.errors import RecipeError, Stopped
from pipelines.core.interfaces import Context, Head
from pipelines.core.load import loads
from pipelines.core.registry import METRICS
from pipelines.models import heads, opening
from pipelines.trainers.multi_task import Sampling, annealed, apportioned
from pipelines.trainers.training_args import training_arguments
from tests import tiny

RECIPE = """\
name: several
model: {{architecture: {{preset: bert-tiny}}}}
stages:
  - stage: multi_task
    id: both
    tasks:
      - {{id: mood, task: {{kind: classification, columns: [text], label: mood, train: train.csv, validation: validation.csv}}, max_length: 24}}
      - {{id: size, task: {{kind: regression, columns: [text], label: size, train: train.csv, validation: validation.csv}}, max_length: 24}}
      - {{id: pair, task: {{kind: classification, columns: [text, other], label: same, train: train.csv, validation: validation.csv}}, max_length: 24}}
    {keys}
"""
ARGUMENTS = "arguments: {num_train_epochs: 2, global_batch_size: 6, learning_rate: 2e-3, logging_steps: 1"


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Any]:
    """`stage(keys)`: a stage on three tasks about the same small file."""
    moods = ("bad", "fine", "good")
    for split, count in (("train", 20), ("validation", 6)):
        lines = [
            f"{moods[row % 3]} {tiny.TEXTS[row]},{tiny.TEXTS[-row]},{moods[row % 3]},{row % 4}.5,{'yes' if row % 2 else 'no'}"
            for row in range(count)
        ]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,other,mood,size,same", *lines]) + "\n")

    def build(keys: str = ARGUMENTS + "}") -> Any:
        return loads(RECIPE.format(keys=keys), folder=tmp_path).stages[0]

    return build


def opened(head: Any, keep_base: Path | None = None, **_: Any) -> Any:
    model = tiny.build("finery", head, seed=7, hidden_dropout_prob=0.1)
    if keep_base is not None:
        model.save_pretrained(keep_base)
        model.name_or_path = str(keep_base)
    return model


@pytest.fixture
def prepared(context: Callable[..., Context]) -> Callable[..., Context]:
    return lambda name="stage": context(name, open_model=opened)


def folders(context: Context) -> dict[str, Path]:
    return {name: context.folder / "tasks" / name / "model" for name in ("mood", "size", "pair")}


def said(folder: Path, **keywords: Any) -> torch.Tensor:
    head = heads.saved_head(folder)
    assert head is not None
    found: torch.Tensor = tiny.logits(opening.open_folder(folder, head, seed=3, **keywords), tiny.batch())
    return found


@pytest.mark.parametrize("tuner", ["full", "{name: lora, r: 4}", "bitfit"])
def test_every_task_leaves_an_ordinary_checkpoint_on_one_body(
    tuner: str, stage: Callable[..., Any], prepared: Callable[..., Context]
):
    context = prepared()
    stage(f"tuner: {tuner}\n    {ARGUMENTS.replace('num_train_epochs: 2', 'max_steps: 4')}}}").run(context)
    wholes = {}
    for name, folder in folders(context).items():
        head = heads.saved_head(folder)
        assert head is not None
        model = opening.open_folder(folder, head, seed=1, trained_head=True)
        wholes[name] = model
        assert model(**tiny.batch()).logits.shape[1] == {"mood": 3, "size": 1, "pair": 2}[name]
    if tuner == "full":
        shards = [folder / "model-00001-of-00002.safetensors" for folder in folders(context).values()]
        assert len({shard.stat().st_ino for shard in shards}) == 1  # weights of the body lie on the disk once
    bodies = [
        dict(model.finery.named_parameters()) if hasattr(model, "finery") else dict(model.base_model.named_parameters())
        for model in wholes.values()
    ]
    for body in bodies[1:]:
        assert body.keys() == bodies[0].keys()
        assert all(torch.equal(weight, bodies[0][name]) for name, weight in body.items())
    classifiers = [model.classifier.state_dict() if hasattr(model, "classifier") else None for model in wholes.values()]
    first, last = classifiers[0], classifiers[2]
    assert first is None or not torch.equal(next(iter(first.values()))[:1], next(iter(last.values()))[:1])  # type: ignore[union-attr]
    body = opening.open_folder(context.folder / "model", tiny.TWO, seed=5)
    assert body.finery_new_modules  # no head of any task goes along
    assert all(torch.equal(weight, bodies[0][name]) for name, weight in body.base_model.named_parameters())


@pytest.mark.parametrize(
    ("keys", "stop_at"),
    [
        (
            "sampling: annealed\n    loss_weighting: uncertainty\n    early_stopping_patience: 1\n    "
            + ARGUMENTS
            + ", eval_strategy: epoch}",
            9,
        ),
        pytest.param(
            "gradient_surgery: pcgrad\n    gradient_conflicts: 2\n    tuner: lora\n    " + ARGUMENTS + "}",
            4,
            marks=pytest.mark.long,
        ),
    ],
    ids=["uncertainty", "surgery"],
)
def test_a_stop_resumes_to_the_bit(
    keys: str,
    stop_at: int,
    stage: Callable[..., Any],
    prepared: Callable[..., Context],
    monkeypatch: pytest.MonkeyPatch,
    events: Any,
):
    from pipelines.trainers.multi_task_trainer import MultiTaskTrainer

    keys = keys.replace("num_train_epochs: 2", "num_train_epochs: 3")
    whole = prepared("whole")
    stage(keys).run(whole)
    stopped, calls = prepared("stopped"), []
    original = MultiTaskTrainer._maybe_log_save_evaluate

    def counting(self: Any, *arguments: Any, **keywords: Any) -> None:
        calls.append(1)
        original(self, *arguments, **keywords)
        stopped.stop.requested = len(calls) == stop_at - 1

    monkeypatch.setattr(MultiTaskTrainer, "_maybe_log_save_evaluate", counting)
    with pytest.raises(Stopped, match=f"at step {stop_at} of"):
        stage(keys).run(stopped)
    monkeypatch.setattr(MultiTaskTrainer, "_maybe_log_save_evaluate", original)
    again = prepared("stopped")
    stage(keys).run(again)
    for name in folders(whole):
        assert torch.equal(said(folders(again)[name]), said(folders(whole)[name])), name

    def told(context: Context) -> list[Any]:
        metrics = [
            (event["step"], sorted(event["metrics"].items())) for event in events(context) if event["event"] == "metric"
        ]
        return [(step, values) for step, values in metrics if not any(name.endswith("runtime") for name, _ in values)]

    assert told(again) == told(whole)


def test_what_the_tasks_say_together_is_what_they_would_say_alone(
    stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    """The first loss of each task under `uniform` is the mean over its own first batch: an independent sum."""
    context = prepared()
    stage(
        f"tasks_per_step: 3\n    {ARGUMENTS}, max_grad_norm: 0}}".replace(
            "global_batch_size: 6", "global_batch_size: 60"
        ).replace("num_train_epochs: 2", "max_steps: 1")
    ).run(context)
    first = next(event["metrics"] for event in events(context) if event["event"] == "metric" and event["step"] == 1)
    assert first["loss"] == pytest.approx(sum(first[f"loss_{name}"] for name in ("mood", "size", "pair")), rel=1e-5)
    size = sum((row % 4 + 0.5) ** 2 for row in range(20)) / 20  # what a model says that always says 0
    assert first["loss_size"] == pytest.approx(size, rel=0.15)
    assert first["loss_mood"] == pytest.approx(1.0986, rel=0.1)


def test_a_step_moves_the_body_by_the_sum_of_what_each_task_would_move_it_alone(
    tmp_path: Path, context: Callable[..., Context]
):
    lines = [f"{('bad', 'good')[row % 2]} {tiny.TEXTS[row]},{('bad', 'good')[row % 2]},{row}.5" for row in range(4)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,mood,size", *lines]) + "\n")
    files = "columns: [text], train: train.csv, validation: validation.csv"
    tasks = {
        "mood": f"task: {{kind: classification, label: mood, {files}}}, max_length: 24",
        "size": f"task: {{kind: regression, label: size, {files}}}, max_length: 24",
    }
    plain = "max_steps: 1, learning_rate: 1e-2, optim: sgd, lr_scheduler_type: constant, max_grad_norm: 0"

    def still(head: Any, **_: Any) -> Any:
        return tiny.build("finery", head, seed=7, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def moved(name: str, stage: str) -> dict[str, torch.Tensor]:
        text = f"name: x\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages: [{stage}]\n"
        given = context(name, open_model=still)
        loads(text, folder=tmp_path).stages[0].run(given)
        folder = given.folder / "tasks" / "mood" / "model" if name == "both" else given.folder / "model"
        after = {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}
        before = still(Head("sequence_classification", ("bad", "good"))).state_dict()
        return {key: after[key] - before[key] for key in after if key.startswith("model.")}

    alone = [
        moved(name, f"{{stage: supervised, {words}, arguments: {{{plain}, global_batch_size: 4}}}}")
        for name, words in tasks.items()
    ]
    listed = ", ".join(
        f"{{id: {name}, {words}, weight: {weight}}}"
        for (name, words), weight in zip(tasks.items(), (1.0, 0.5), strict=True)
    )
    keys = f"sampling: uniform, tasks_per_step: 2, arguments: {{{plain}, global_batch_size: 8}}"
    both = moved("both", f"{{stage: multi_task, id: both, tasks: [{listed}], {keys}}}")
    assert both
    for key, delta in both.items():
        torch.testing.assert_close(delta, alone[0][key] + 0.5 * alone[1][key], atol=2e-6, rtol=2e-3)
    assert max(each.abs().max() for each in alone[1].values()) > 1e-4


def test_held_out_scores_are_told_by_task_and_on_the_whole(stage: Callable[..., Any], prepared: Callable[..., Context]):
    context = prepared()
    stage(ARGUMENTS + ", eval_strategy: epoch, save_strategy: epoch, load_best_model_at_end: true}").run(context)
    metrics = json.loads((context.folder / "metrics.json").read_text())
    firsts = [metrics["eval_mood_accuracy"], metrics["eval_size_pearson"], metrics["eval_pair_accuracy"]]
    assert metrics["eval_mean"] == pytest.approx(sum(firsts) / 3)
    assert {
        "trainable_parameters",
        "all_parameters",
        "train_runtime",
        "train_samples_per_second",
        "peak_memory_bytes",
    } <= set(metrics)


@pytest.mark.parametrize(
    ("metric", "larger"),
    [
        ("mood_accuracy", True),
        ("eval_mood_loss", False),
        ("size_perplexity", False),
        ("eval_pair_errors", False),
        ("pair_errors, greater_is_better: true", True),
    ],
)
def test_the_score_of_a_task_selects_in_the_direction_of_the_score(
    metric: str, larger: bool, stage: Callable[..., Any], context: Callable[..., Context], monkeypatch
):
    monkeypatch.setitem(METRICS._table, "errors", "tests.pipelines.trainers.test_training_args:Errors")
    made = stage(f"{ARGUMENTS}, eval_strategy: epoch, load_best_model_at_end: true, metric_for_best_model: {metric}}}")
    live = training_arguments(context(), made.arguments, made._overrides(1, []))
    assert live.greater_is_better is larger


@pytest.mark.parametrize(
    ("keys", "place", "sentence"),
    [
        (
            "sampling: {name: explicit, shares: {mood: 1.0, size: 1.0}}",
            "sampling.shares",
            "must name each of mood, size, pair and nothing else; 'pair' does not fit",
        ),
        ("tasks_per_step: 4", "tasks_per_step", "is 4, but there are 3 tasks"),
        (
            "gradient_surgery: pcgrad\n    tasks_per_step: 1",
            "tasks_per_step",
            "is 1, but gradient surgery compares the tasks of a step",
        ),
        ("gradient_conflicts: 5", "gradient_conflicts", "set tasks_per_step to at least 2"),
        (
            "gradient_surgery: pcgrad\n    sampling: proportional",
            "sampling",
            "is proportional, but every step sees every task",
        ),
        (
            "tasks_per_step: 2\n    arguments: {global_batch_size: 7}",
            "arguments.global_batch_size",
            "is 7, which 2 tasks a step cannot share; make it a multiple of 2",
        ),
        (
            "tasks_per_step: 2\n    arguments: {gradient_accumulation_steps: 2}",
            "arguments.gradient_accumulation_steps",
            "follows from tasks_per_step",
        ),
        ("early_stopping_patience: 1", "early_stopping_patience", "needs arguments.eval_strategy: epoch or steps"),
        ("tuner: prefix", "tuner", "is prefix, which several heads cannot share"),
    ],
)
def test_what_cannot_work_is_refused(keys: str, place: str, sentence: str, stage: Callable[..., Any]):
    with pytest.raises(RecipeError) as caught:
        stage(keys)
    assert any(place in str(mistake.key) and sentence in mistake.message for mistake in caught.value.mistakes), (
        caught.value
    )


TWICE = """\
name: x
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: multi_task, id: both, tasks: [{task: glue/mrpc}, {task: glue/rte}]}
  - %s
"""


WRITTEN = """\
name: x
model: {architecture: {preset: t5-tiny}}
stages:
  - {stage: multi_task, id: both, form: text_to_text, tasks: [{task: glue/mrpc}, {task: glue/rte}]}
"""


def test_two_tasks_of_one_name_are_refused():
    with pytest.raises(RecipeError, match="'mrpc' is the name of an earlier task too"):
        loads(TWICE.replace("glue/rte", "glue/mrpc") % "{stage: evaluate}")


def test_tasks_on_one_body_read_it_alike():
    pooled = TWICE.replace("{task: glue/rte}", "{task: glue/rte, pooling: mean}") % "{stage: evaluate}"
    with pytest.raises(RecipeError) as caught:
        loads(pooled)
    [mistake] = caught.value.mistakes
    assert mistake.key == "stages.both.tasks[1].pooling"
    assert "give all of them one pooling, or none" in mistake.message
    loads(pooled.replace("{task: glue/mrpc}", "{task: glue/mrpc, pooling: mean}"))
    with pytest.raises(RecipeError, match="is mean, but that of the first task is first"):
        loads(pooled.replace("{task: glue/mrpc}", "{task: glue/mrpc, pooling: first}"))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("pooling: mean", "pooling: is for tasks that are learnt with a head of classes"),
        (
            "class_weights: balanced",
            "class_weights: is for tasks that are learnt with a head of classes, but here the answers are written",
        ),
        ("label_smoothing_factor: 0.1", "does not reach answers that are written; set objective.label_smoothing"),
        ("packing: true", "packing: is for tasks of the kind causal"),
        ("doc_stride: 4", "doc_stride: is for tasks of the kind qa"),
        ("max_length: 600", "max_length: is 600, but the model has max_position_embeddings 512"),
        ("max_target_length: 600", "max_target_length: is 600, but the model has max_position_embeddings 512"),
    ],
)
def test_keys_that_written_answers_have_no_use_for_are_refused(keys: str, sentence: str):
    with pytest.raises(RecipeError) as caught:
        loads(WRITTEN.replace("{task: glue/mrpc}", f"{{task: glue/mrpc, {keys}}}"))
    [mistake] = caught.value.mistakes
    assert sentence in str(mistake)
    assert mistake.key.startswith("stages.both.tasks[0].")


def test_written_answers_need_rows_to_learn_from_and_the_code_of_pairs():
    with pytest.raises(RecipeError, match="glue/ax has no training rows"):
        loads(WRITTEN.replace("glue/mrpc", "glue/ax"))
    assert (written := loads(WRITTEN)).stages[0].modules(written) == {"pipelines.tasks.seq2seq"}


@pytest.mark.parametrize(
    ("then", "sentence"),
    [
        ("{stage: publish, to: registry/x}", "'both' leaves a model for each task; name one: both/mrpc, both/rte"),
        ("{stage: publish, from: both/sst2, to: registry/x}", "'both/sst2' is no model of 'both'"),
        (
            "{stage: evaluate, from: both, benchmarks: [glue/sst2]}",
            "'both' did not train 'glue/sst2'; its models are both/mrpc, both/rte",
        ),
        ("{stage: evaluate, benchmarks: [both]}", "stage 'both' trains several: both/mrpc, both/rte"),
    ],
)
def test_a_model_that_the_stage_does_not_leave_is_refused(then: str, sentence: str):
    with pytest.raises(RecipeError) as caught:
        loads(TWICE % then)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("then", "models"),
    [
        ("{stage: evaluate}", ["both/mrpc", "both/rte"]),
        ("{stage: evaluate, from: both}", ["both/mrpc", "both/rte"]),
        ("{stage: evaluate, from: both/rte}", ["both/rte"]),
        ("{stage: evaluate, benchmarks: [glue/rte]}", ["both/rte"]),
    ],
)
def test_evaluation_finds_the_model_of_each_task(then: str, models: list[str]):
    recipe = loads(TWICE % then)
    choices, found = recipe.stages[1].choices(recipe)
    assert found == []
    assert [choice.model for choice in choices] == models
    assert recipe.stages[1].reads(recipe) == tuple(models)
    assert choices[0].trained_length(recipe) == 128


def test_a_later_stage_reads_the_shared_body_or_one_tasks_model():
    for source in ("both", "both/mrpc"):
        recipe = loads(TWICE % f"{{stage: supervised, from: {source}, task: glue/rte}}")
        assert recipe.model_of(recipe.stages[1]) == source
        assert [stage.id for stage in recipe.lineage(recipe.stages[1])] == ["both"]


@pytest.mark.parametrize("tuner", ["full", "lora", "prefix", "prompt"])
@pytest.mark.parametrize("shape", [("t5", {}), ("finery", {"family": "encoder-decoder"})], ids=["t5", "finery"])
def test_one_model_that_writes_is_shared_whole(tuner: str, shape: tuple[str, dict[str, Any]]):
    """transformers' T5 has no module for its body, and virtual tokens lie outside of any: all that the tuner tunes must learn."""
    from pipelines.core.registry import TUNERS
    from pipelines.trainers.multi_task_model import SharedBody

    model = tiny.build(shape[0], Head("seq2seq_lm"), **shape[1])
    shared = SharedBody([model, model], TUNERS.load(tuner)(), ["one", "two"])
    learning = {id(weight) for weight in shared.model(0).parameters() if weight.requires_grad}
    assert learning
    assert {id(weight) for weight in shared.parameters() if weight.requires_grad} == learning
    assert shared.bare(0) is shared.bare(1) is model


SIZES, IDS = (8, 1, 1), ("a", "b", "c")


def weights(epoch: int = 0, epochs: int = 1, **words: object) -> list[float]:
    return Sampling.model_validate(words).weights(SIZES, IDS, epoch, epochs)


def test_proportional_follows_the_sizes():
    assert weights() == pytest.approx([0.8, 0.1, 0.1])


def test_uniform_does_not():
    assert weights(name="uniform") == pytest.approx([1 / 3] * 3)


def test_temperature_takes_a_root():
    # 8^(1/3) = 2, 1^(1/3) = 1: 2 / 4, 1 / 4, 1 / 4
    assert weights(name="temperature", temperature=3.0) == pytest.approx([0.5, 0.25, 0.25])
    assert weights(name="temperature", temperature=1.0) == pytest.approx([0.8, 0.1, 0.1])


def test_annealing_begins_proportional_and_ends_at_a_fifth_power():
    assert weights(0, 5, name="annealed") == pytest.approx([0.8, 0.1, 0.1])
    last = 8**0.2
    assert weights(4, 5, name="annealed") == pytest.approx([last / (last + 2), 1 / (last + 2), 1 / (last + 2)])
    # Stickland and Murray: alpha = 1 - 0.8 (e - 1) / (E - 1), their e counts from 1
    assert [annealed(epoch, 5) for epoch in range(5)] == pytest.approx([1 - 0.8 * (e - 1) / 4 for e in range(1, 6)])
    assert annealed(0, 1) == 1.0


def test_explicit_shares_are_ratios():
    assert weights(name="explicit", shares={"a": 1.0, "b": 1.0, "c": 2.0}) == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize(
    ("words", "place", "sentence"),
    [
        ({"name": "temperature"}, ("temperature",), "is missing, which temperature sampling needs"),
        (
            {"name": "uniform", "temperature": 2.0},
            ("temperature",),
            "belongs to temperature sampling, and this is uniform; leave it out",
        ),
        ({"name": "explicit"}, ("shares",), "is missing, which explicit sampling needs"),
        ({"shares": {"a": 1.0}}, ("shares",), "belongs to explicit sampling, and this is proportional; leave it out"),
    ],
)
def test_settings_belong_to_their_rule(words: dict[str, object], place: tuple[str, ...], sentence: str):
    with pytest.raises(ValidationError) as caught:
        Sampling.model_validate(words)
    assert dict(flatten(caught.value)) == {place: sentence}


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_whole_numbers_add_up_and_are_never_off_by_one(total: int, raw: list[float]):
    shares = [each / sum(raw) for each in raw]
    counts = apportioned(total, shares)
    assert sum(counts) == total
    assert all(abs(count - total * share) < 1 for count, share in zip(counts, shares, strict=True))
