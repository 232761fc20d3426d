"""Training rows that are not learnt from, by which the best checkpoint of a training is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import DataError
from pipelines.core.training_arguments import TrainingArguments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Examples(Protocol):
    """Encoded rows, as a training loop reads them."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row (rows,)."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> dict[str, object]: ...

    def select(self, positions: Sequence[int] | NDArray[np.int64]) -> Examples:
        """The rows at these positions."""


class Divided(NamedTuple):
    """What a training loop needs to choose among its checkpoints."""

    examples: Examples
    """What is learnt from."""
    selection: Examples | None
    """What is scored beside it; None where nothing is chosen."""
    overrides: Mapping[str, str]
    """The metric that decides, where the arguments name none."""


def issues(patience: int | None, arguments: TrainingArguments) -> Iterable[ConfigIssue]:
    """What cannot go together in the stage that has this `early_stopping_patience` and these `arguments`."""
    if patience is not None and not arguments.load_best_model_at_end:
        yield ("early_stopping_patience",), "needs arguments.eval_strategy and arguments.load_best_model_at_end: true"


def divided(
    examples: Examples, arguments: TrainingArguments, metric: str, seed: int, most: int | None, name: str = "there"
) -> Divided:
    """Rows set aside where `eval_strategy` asks for them; `metric` decides unless the arguments name another.

    Raises DataError, which begins with `name`, when there are too few rows.
    """
    if arguments.eval_strategy == "no":
        return Divided(examples, None, {})
    learnt, selection = set_aside(examples, seed, most, name)
    return Divided(learnt, selection, {} if arguments.metric_for_best_model else {"metric_for_best_model": metric})


def set_aside(examples: Examples, seed: int, most: int | None, name: str = "there") -> tuple[Examples, Examples]:
    """(what is trained on, what models are selected by), rows drawn by the seed: all parts of a long text go together.

    Raises DataError, which begins with `name`, when there are too few rows.
    """
    import numpy as np

    from pipelines.tasks.base import drawn

    rows, row_of = np.unique(getattr(examples, "index", range(len(examples))), return_inverse=True)
    if len(rows) < 2:
        reason = "there is one training row" if name == "there" else f"{name} has one training row"
        raise DataError(f"{reason}, too few to set one aside for eval_strategy")
    trained, aside = drawn(len(rows), seed)
    held_out = np.flatnonzero(np.isin(row_of, aside[:most]))
    return examples.select(np.flatnonzero(np.isin(row_of, trained))), examples.select(held_out)
