"""A reward model is published, opened without Finery with equal scores, scored again, and used as a reward."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.commands import verify
from pipelines.commands.predict import answer
from pipelines.core.interfaces import Context, Head, World
from pipelines.core.load import load
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.reward_inputs import RewardCollator, RewardInputFormat, encode_scored
from pipelines.models.heads import HEAD_CLASSES
from pipelines.models.opening import open_folder
from pipelines.models.tokenizer import open_tokenizer
from pipelines.publishing.usage import _compare
from pipelines.rewards.model import RewardModel
from pipelines.runs.run import run
from tests import tiny
from tests.clean_process import forked_proofs
from tests.finished_run import inside

SHAPE = (
    "hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64"
)
RECIPE = """
name: scores
model: {{architecture: {{preset: {preset}, {shape}}}}}
tokenizer: {{train: {tokenizer}, vocab_size: {words}}}
stages:
  - {{stage: reward, task: {{kind: preference, train: rows.jsonl, validation: rows.jsonl}}, tuner: {tuner}, max_length: 64,
     arguments: {{max_steps: 6, global_batch_size: 8, learning_rate: 1e-2, eval_strategy: epoch}}}}
  - {{stage: evaluate}}
  - {{stage: publish, to: registry/scores}}
"""
KINDS = {
    "decoder": ("gpt-tiny", "byte_bpe", 400, "full"),
    "encoder": ("bert-tiny", "wordpiece", 150, "{name: lora, r: 2}"),
}
ASKED = {"prompt": "How long do I boil an egg?", "completions": ["Seven minutes.", "Eggs are eggs."]}


@pytest.fixture(scope="module", params=list(KINDS))
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder of a run that published one."""
    root = tmp_path_factory.mktemp(request.param)
    preset, tokenizer, words, tuner = KINDS[request.param]
    texts = [f"{one} {other}" for one, other in zip(tiny.TEXTS, reversed(tiny.TEXTS), strict=True)]
    rows = [{"prompt": text, "chosen": f" {text} it", "rejected": " the film is bad"} for text in texts]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    given = {"preset": preset, "shape": SHAPE, "tokenizer": tokenizer, "words": words, "tuner": tuner}
    (root / "recipe.yaml").write_text(RECIPE.format(**given))
    with inside(root), forked_proofs():
        run(load(root / "recipe.yaml"), root / "runs" / "scores")
        yield root


def scores_of(folder: Path) -> list[float]:
    """What `finery predict` says of the two answers."""
    (folder.parent / "asked.jsonl").write_text(json.dumps(ASKED) + "\n")
    out = folder.parent / "out.jsonl"
    answer({"model": str(folder), "data": str(folder.parent / "asked.jsonl"), "out": str(out)})
    scores: list[float] = json.loads(out.read_text())["scores"]
    return scores


def test_every_prediction_is_proven_and_its_card_says_what_the_number_is(published: Path) -> None:
    folder = published / "registry/scores"
    proof = json.loads((folder / "publication.json").read_text())["verification"]
    assert proof["rows"] == proof["of"] == len(tiny.TEXTS)
    assert (proof["flips"], proof["largest_difference"] < 1e-5) == (0, True)
    card = (folder / "README.md").read_text()
    assert "Only differences between answers to the same prompt mean something" in card
    assert re.search(r"On \d+ pairs that were set aside in training: accuracy \d\.\d{4}", card)
    assert "| reward | accuracy | " in card
    assert "datasets:" not in card.split("---")[1]  # rows.jsonl is a file, and no id of the Hub


def test_the_lines_of_the_card_give_the_scores_that_finery_gives(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(published / "registry/scores", folder)
    card = (folder / "README.md").read_text()
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["problem_type"]) == (["FineryForSequenceClassification"], "regression")
    monkeypatch.chdir(published)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL)), names)
    assert type(names["model"]).__name__ == "FineryForSequenceClassification"
    assert names["scores"] == pytest.approx(scores_of(folder), abs=1e-5)


def test_its_scores_are_measured_again(published: Path) -> None:
    told = verify.answer({"folder": str(published / "registry/scores"), "data": str(published)})
    assert told["verified"], told
    assert [(each["benchmark"], each["metric"]) for each in told["scores"]] == [("reward", "accuracy")]


def test_it_is_the_reward_of_a_policy(published: Path) -> None:
    folder = str(published / "registry/scores")

    class Opened(Context):  # as a run opens a checkpoint
        def __init__(self) -> None:
            self.__dict__["world"] = World()
            self.__dict__["open_model"] = lambda head, checkpoint, **_: open_folder(
                checkpoint, head, 0, trained_head=True
            )
            self.__dict__["open_tokenizer"] = lambda stage_id, checkpoint: open_tokenizer(checkpoint)

    scorer = RewardModel.model_validate({"checkpoint": folder}).open(Opened())
    found = scorer([str(ASKED["prompt"])] * 2, list(ASKED["completions"]))
    assert found == pytest.approx(scores_of(Path(folder)), abs=1e-5)


@pytest.mark.parametrize(
    ("family", "reading", "template"),
    [
        ("decoder", RewardInputFormat("text", 40), ""),
        ("decoder", RewardInputFormat("text", 60, templated=True), "simple"),
        ("encoder", RewardInputFormat("pair", 40), ""),
    ],
)
def test_the_lines_read_two_answers_as_they_were_read_in_training(family: str, reading: Any, template: str) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    if template:
        tokenizer.chat_template = TEMPLATES[template]
    model = tiny.build("finery", Head("reward"), family=family, initializer_range=0.5).eval()
    names: dict[str, Any] = {"tokenizer": tokenizer, "model": model}
    exec(_compare(reading), names)
    rows = encode_scored(tokenizer, reading.dialogues([names["prompt"]] * 2, names["answers"]), reading)
    with torch.no_grad():
        expected = model(**RewardCollator.of(tokenizer)([rows[0], rows[1]])).logits[:, 0].tolist()
    assert names["scores"] == pytest.approx(expected, abs=1e-5)
    assert HEAD_CLASSES["reward"].auto_class == "AutoModelForSequenceClassification"
