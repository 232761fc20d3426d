"""What a checkpoint is chosen by: rows set aside, a metric, and what cannot go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import DataError
from pipelines.core.training_arguments import TrainingArguments
from pipelines.trainers import model_selection


class Many:
    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, positions: np.ndarray) -> Many:
        return Many(self.rows[positions])


def test_at_most_two_thousand_rows_are_set_aside() -> None:
    learn, held_out = model_selection.set_aside(Many(np.arange(50_000)), 3, None)
    assert len(held_out) == 2_000
    assert sorted([*learn.rows, *held_out.rows]) == list(range(50_000))


def test_one_row_is_too_few() -> None:
    with pytest.raises(DataError, match=r"^task 'x' has one training row, too few to set one aside for eval_strategy$"):
        model_selection.divided(
            Many(np.arange(1)), TrainingArguments(eval_strategy="epoch"), "loss", 1, None, "task 'x'"
        )
    with pytest.raises(DataError, match=r"^there is one training row, too few"):
        model_selection.set_aside(Many(np.arange(1)), 1, None)


@pytest.mark.parametrize("arguments", [{}, {"eval_strategy": "no"}, {"evaluation_strategy": "no"}])
def test_nothing_is_set_aside_unasked(arguments: dict[str, Any]) -> None:
    examples = Many(np.arange(9))
    assert model_selection.divided(examples, TrainingArguments(**arguments), "f1", 1, None) == (examples, None, {})


@pytest.mark.parametrize(("given", "metric"), [({}, "f1"), ({"metric_for_best_model": "loss"}, "loss")])
def test_the_arguments_may_name_the_metric(given: dict[str, Any], metric: str) -> None:
    arguments = TrainingArguments(**given, eval_strategy="epoch")
    found = model_selection.divided(Many(np.arange(40)), arguments, "f1", 1, 3)
    assert found.overrides.get("metric_for_best_model", arguments.metric_for_best_model) == metric
    assert (len(found.examples), len(found.selection)) == (36, 3)


@pytest.mark.parametrize(
    ("patience", "arguments", "expected"),
    [
        (None, {}, []),
        (2, {"eval_strategy": "epoch", "load_best_model_at_end": True}, []),
        (2, {"eval_strategy": "epoch"}, [("early_stopping_patience",)]),
    ],
)
def test_choosing_needs_something_to_choose_by(
    patience: int | None, arguments: dict[str, Any], expected: list[Any]
) -> None:
    assert [place for place, _ in model_selection.issues(patience, TrainingArguments(**arguments))] == expected
