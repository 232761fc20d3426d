"""Training rows that are not learnt from, by which the best checkpoint of a training is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import DataError
from pipelines.trainers.arguments import in_todays_names


class Divided(NamedTuple):
    """What a training loop needs to choose among its checkpoints."""

    examples: Any
    """What is learnt from."""
    selection: Any
    """What is scored beside it; None where nothing is chosen."""
    arguments: Mapping[str, Any]
    """With the metric that decides."""


def mistakes(patience: int | None, arguments: Mapping[str, Any]) -> Iterable[ConfigIssue]:
    """What cannot go together in the stage that has this `early_stopping_patience` and these `arguments`."""
    words = in_todays_names(arguments)
    best = words.get("load_best_model_at_end")
    if patience is not None and not best:
        yield ("early_stopping_patience",), "needs arguments.eval_strategy and arguments.load_best_model_at_end: true"
    if best and words.get("eval_strategy", "no") == "no":
        yield ("arguments", "load_best_model_at_end"), "needs arguments.eval_strategy: epoch or steps"


def divided(
    examples: Any, arguments: Mapping[str, Any], metric: str, seed: int, most: int | None, name: str = "there"
) -> Divided:
    """Rows set aside where `eval_strategy` asks for them; `metric` decides unless the arguments name another.

    Raises DataError, which begins with `name`, when there are too few rows.
    """
    words = in_todays_names(arguments)
    if words.get("eval_strategy", "no") == "no":
        return Divided(examples, None, arguments)
    learnt, selection = set_aside(examples, seed, most, name)
    return Divided(
        learnt,
        selection,
        arguments if words.get("metric_for_best_model") else {"metric_for_best_model": metric} | dict(arguments),
    )


def set_aside(examples: Any, seed: int, most: int | None, name: str = "there") -> tuple[Any, Any]:
    """(what is trained on, what models are selected by), rows drawn by the seed: all parts of a long text go together.

    Raises DataError, which begins with `name`, when there are too few rows.
    """
    import numpy as np

    from pipelines.tasks.base import drawn

    rows, row_of = np.unique(getattr(examples, "index", range(len(examples))), return_inverse=True)
    if len(rows) < 2:
        said = "there is one training row" if name == "there" else f"{name} has one training row"
        raise DataError(f"{said}, too few to set one aside for eval_strategy")
    trained, aside = drawn(len(rows), seed)
    held_out = np.flatnonzero(np.isin(row_of, aside[:most]))
    return examples.select(np.flatnonzero(np.isin(row_of, trained))), examples.select(held_out)
