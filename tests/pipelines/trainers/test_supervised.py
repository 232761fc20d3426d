"""Supervised stages learn from train alone, select by a part of it, and refuse settings that cannot work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.interfaces import Context, Head
from pipelines.core.load import loads
from pipelines.models import heads, opening
from pipelines.tasks.base import LabelledTask
from pipelines.trainers import trainer
from tests import tiny

ROWS = 30
RECIPE = """\
name: inline
model: {{architecture: {{preset: bert-tiny}}}}
stages:
  - stage: supervised
    task: {{kind: {kind}, columns: [text], label: label, train: train.csv, validation: validation.csv}}
    {keys}
"""


def text_of(row: int) -> str:
    """A text from which its label can be told."""
    return f"{('bad', 'fine', 'good')[row % 3]} {'cat ' * (row % 3)} {tiny.TEXTS[row % len(tiny.TEXTS)]}"


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Any]:
    """`stage(keys, kind="classification", rows=30)`: a supervised stage on files of its own."""

    def build(keys: str = "max_length: 32", kind: str = "classification", rows: int = ROWS) -> Any:
        label = (
            (lambda row: ("bad", "fine", "good")[row % 3]) if kind == "classification" else (lambda row: row % 3 - 0.5)
        )
        for split, count in (("train", rows), ("validation", 6)):
            lines = [f"{text_of(row)},{label(row)}" for row in range(count)]
            (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
        return loads(RECIPE.format(kind=kind, keys=keys), folder=tmp_path).stages[0]

    return build


def opener(family: str) -> Callable[..., Any]:
    return lambda head, keep_base=None, **_: tiny.build(family, head, seed=7)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the stage hands to the loop, which is not run."""
    given: dict[str, Any] = {}

    def record(context: Any, model: Any, tokenizer: Any, examples: Any, **keywords: Any) -> Any:
        given.update(keywords, examples=examples)
        return model, {}

    monkeypatch.setattr(trainer, "fit", record)
    return given


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits whose rows are read."""
    read: list[str] = []
    original = LabelledTask._read

    def spy(self: Any, split: str) -> Any:
        read.append(split)
        return original(self, split)

    monkeypatch.setattr(LabelledTask, "_read", spy)
    return read


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_head_that_is_opened_has_the_pooling_of_the_stage(
    kind: str, stage: Any, context: Callable[..., Context], fitted: dict[str, Any]
) -> None:
    asked: list[Head] = []

    def open_model(head: Head, **_: Any) -> Any:
        asked.append(head)
        return tiny.build("finery", head, seed=7)

    for keys, pooling in (("pooling: mean", "mean"), ("max_length: 32", None)):
        stage(keys, kind=kind).run(context(open_model=open_model))
        assert asked.pop().pooling == pooling


def test_rows_for_selection_are_none_of_those_learnt_from(
    stage: Any, context: Callable[..., Context], fitted: dict[str, Any], splits: list[str]
) -> None:
    stage("arguments: {eval_strategy: epoch}").run(context(open_model=opener("bert")))
    learn, held_out = fitted["examples"], fitted["selection"]
    assert len(held_out) == 3  # a tenth
    assert not set(learn.index) & set(held_out.index)
    assert sorted([*learn.index, *held_out.index]) == list(range(ROWS))
    assert fitted["score"](np.eye(3), np.arange(3)) == {"accuracy": 1.0, "f1": 1.0}
    assert fitted["lengths"].tolist() == [len(row) for row in learn.input_ids]
    assert set(splits) == {"train"}


def test_selection_is_drawn_by_the_seed_and_limited(
    stage: Any, context: Callable[..., Context], fitted: dict[str, Any]
) -> None:
    drawn = []
    for seed in (1, 1, 2):
        stage("arguments: {eval_strategy: steps}").run(context(open_model=opener("bert"), seed=seed))
        drawn.append(tuple(fitted["selection"].index))
    assert drawn[0] == drawn[1] != drawn[2]
    stage("max_eval_samples: 2\n    arguments: {eval_strategy: steps}").run(context(open_model=opener("bert"), seed=1))
    assert tuple(fitted["selection"].index) == drawn[0][:2]
    assert len(fitted["examples"]) == ROWS - 3


def test_without_selection_every_row_is_learnt_from(
    stage: Any, context: Callable[..., Context], fitted: dict[str, Any], splits: list[str]
) -> None:
    stage().run(context(open_model=opener("finery")))
    assert fitted["examples"].index == list(range(ROWS))
    assert fitted["selection"] is fitted["score"] is None
    assert set(splits) == {"train"}
    stage("max_train_samples: 7").run(context(open_model=opener("finery")))
    assert fitted["examples"].index == list(range(7))


@pytest.mark.parametrize("words", ["evaluation_strategy: epoch", "eval_strategy: epoch"])
def test_earlier_names_decide_as_todays_do(
    words: str, stage: Any, context: Callable[..., Context], fitted: dict[str, Any]
) -> None:
    stage(f"arguments: {{{words}, load_best_model_at_end: true, group_by_length: false}}").run(
        context(open_model=opener("bert"))
    )
    assert len(fitted["selection"]) == 3
    assert fitted["lengths"] is None
    assert fitted["overrides"] == {"metric_for_best_model": "accuracy"}


def test_a_metric_of_the_users_own_keeps_its_direction(
    stage: Any, context: Callable[..., Context], fitted: dict[str, Any]
) -> None:
    stage("arguments: {eval_strategy: epoch, load_best_model_at_end: true, metric_for_best_model: loss}").run(
        context(open_model=opener("bert"))
    )
    assert fitted["overrides"] == {}
    given = fitted["arguments"].given()
    assert given["metric_for_best_model"] == "loss"
    assert "greater_is_better" not in given  # transformers knows that losses are better small


def test_rows_that_are_cut_are_told(
    stage: Any, context: Callable[..., Context], fitted: dict[str, Any], events: Any
) -> None:
    place = context(open_model=opener("bert"))
    stage("max_length: 8").run(place)
    cut = sum(len(ids) > 8 for ids in tiny.tokenizer()([text_of(row) for row in range(ROWS)])["input_ids"])
    (warning,) = [event["message"] for event in events(place) if event["event"] == "warning"]
    assert warning == f"{cut} of 30 rows are cut to 8 tokens ({cut / 30:.1%}); max_length sets the limit"


def test_one_row_cannot_be_divided(stage: Any, context: Callable[..., Context]) -> None:
    with pytest.raises(DataError, match="has one training row, too few"):
        stage("max_train_samples: 1\n    arguments: {eval_strategy: epoch}").run(context(open_model=opener("bert")))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("early_stopping_patience: 2", r"supervised.early_stopping_patience: needs arguments.eval_strategy"),
        ("arguments: {load_best_model_at_end: true}", r"arguments.load_best_model_at_end: "),
        ("max_length: 1000", "max_length: is 1000, but the model has max_position_embeddings 512"),
        ("arguments: {learning_rate: fast}", r"arguments.learning_rate: is \"fast\""),
        ("arguments: {output_dir: here}", "arguments.output_dir: is the stage's own folder"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_loads(keys: str, sentence: str, stage: Any) -> None:
    with pytest.raises(RecipeError, match=sentence):
        stage(keys)


def test_glue_ax_has_nothing_to_learn_from() -> None:
    with pytest.raises(RecipeError, match="glue/ax has no training rows; train glue/mnli"):
        loads("name: x\nmodel: {architecture: {preset: bert-tiny}}\nstages: [{stage: supervised, task: glue/ax}]\n")


@pytest.mark.parametrize(
    ("kind", "tuner"), [("classification", "full"), ("classification", "lora"), ("regression", "full")]
)
def test_a_whole_stage_learns_and_leaves_its_result(
    kind: str, tuner: str, stage: Any, context: Callable[..., Context], events: Any, tmp_path: Path
) -> None:
    def open_model(head: Head, keep_base: Path | None = None, **_: Any) -> Any:
        model = tiny.build("finery", head, seed=7)
        if keep_base is not None:
            model.save_pretrained(keep_base)
            model.name_or_path = str(keep_base)
        return model

    place = context(open_model=open_model)
    keys = f"tuner: {tuner}\n    max_length: 32\n    arguments: {{num_train_epochs: 10, learning_rate: 1e-2, global_batch_size: 8, logging_steps: 4, save_strategy: 'no'}}"
    stage(keys, kind).run(place)
    metrics = json.loads((place.folder / "metrics.json").read_text())
    required = {
        "train_runtime",
        "train_samples_per_second",
        "trainable_parameters",
        "all_parameters",
        "peak_memory_bytes",
    }
    assert required <= metrics.keys()
    assert metrics["train_steps"] == 10 * 4
    losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
    assert losses[-1] < 0.8 * losses[0]
    head = Head("sequence_classification", ("bad", "fine", "good") if kind == "classification" else ())
    assert heads.saved_head(place.folder / "model") == head
    opened = opening.open_folder(place.folder / "model", head, seed=0, trained_head=True)
    assert tiny.logits(opened, tiny.batch()).shape == (4, len(head.labels) or 1)


def test_its_text_is_that_of_the_training_rows(stage: Any) -> None:
    texts = list(stage("max_train_samples: 3").texts())
    assert [text.split() for text in texts] == [text_of(row).split() for row in range(3)]
