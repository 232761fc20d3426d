"""What every metric is: pure functions of predictions and references, and the same as an `evaluate.Metric`.

A metric is a class of the METRICS table that takes no settings; `load_metric` makes it. `compute` gives its scores.
What the scores are called and their bounds are read from the class by checks of recipes, so a module with a metric
imports numpy inside functions alone.
The scores of many metrics follow from sums over the examples (`CountedMetric`): `counts` gives what each example adds,
and `of_counts` the scores of a sum, so that resampling counts each example once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from pipelines.core.registry import METRICS

if TYPE_CHECKING:
    import evaluate
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Column: TypeAlias = "Sequence[Any] | NDArray[Any]"
"""What predictions or references hold, one value an example."""
Values = Literal["classes", "numbers", "texts", "answers", "tags"]
"""What predictions and references hold: class ids, numbers, texts, texts against lists of right ones, or lists of
tags."""


class Metric:
    """A metric. Its class stands in METRICS and is made without arguments."""

    values: ClassVar[Values]
    scores: ClassVar[tuple[str, ...]] = ()
    """The names of its scores, the one to select models by first. Empty: one score, under the metric's own name."""
    best: ClassVar[float] = 1.0
    """What perfect predictions score: 100 where official scorers print percentages."""
    worst: ClassVar[float] = 0.0
    """The other bound of its scores."""

    def compute(self, predictions: Column, references: Column, classes: int | None = None) -> dict[str, float]:
        """Its scores by name, as plain floats. Raises ValueError where nothing can be scored.

        Parameters: classes: how many classes the task has, for metrics of classes.
        """
        raise NotImplementedError

    def signature(self) -> str | None:
        """How the score was computed, as publications of scores of texts state it."""
        return None

    @classmethod
    @cache
    def as_evaluate(cls) -> type[evaluate.Metric]:
        """The same as a class of `evaluate`, for `add_batch`, `compute` and `evaluate.combine`.

        `evaluate.load` fetches metric scripts over the network; these classes need none.
        """
        return _evaluate_metric(cls)


class CountedMetric(Metric):
    """A metric of a corpus whose scores follow from sums over its examples."""

    def counts(self, predictions: Column, references: Column) -> NDArray[Any]:
        """What each example adds (examples, counts)."""
        raise NotImplementedError

    def of_counts(self, sums: NDArray[Any]) -> dict[str, float]:
        """The scores of a corpus whose counts have these sums (counts,)."""
        raise NotImplementedError

    def compute(self, predictions: Column, references: Column, classes: int | None = None) -> dict[str, float]:
        return self.of_counts(self.counts(predictions, references).sum(axis=0))


@cache
def load_metric(name: str) -> Metric:
    """The metric of that name, made once. Raises UnknownName."""
    metric: Metric = METRICS.load(name)()
    return metric


def counted_metric(name: str) -> CountedMetric:
    """The same for a metric that must follow from sums."""
    metric = load_metric(name)
    assert isinstance(metric, CountedMetric), name
    return metric


def signatures(names: Iterable[str]) -> dict[str, str]:
    """How each of these metrics was computed, where it says so."""
    by_name = {name: load_metric(name).signature() for name in names}
    return {name: signature for name, signature in by_name.items() if signature is not None}


def _evaluate_metric(cls: type[Metric]) -> type[evaluate.Metric]:
    import datasets
    import evaluate

    text, texts = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
    columns: dict[Values, tuple[Any, Any]] = {
        "classes": (datasets.Value("int64"), datasets.Value("int64")),
        "numbers": (datasets.Value("float64"), datasets.Value("float64")),
        "texts": (text, text),
        "answers": (text, texts),
        "tags": (texts, texts),
    }
    assert set(columns) == set(get_args(Values))
    predicted, true = columns[cls.values]
    metric = cls()

    class EvaluateMetric(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> evaluate.MetricInfo:
            return evaluate.MetricInfo(
                description=cls.__doc__ or "",
                citation="",
                inputs_description=metric.compute.__doc__ or "",
                features=datasets.Features({"predictions": predicted, "references": true}),
            )

        def _compute(self, *, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            return metric.compute(predictions, references, **options)

    # `evaluate` names a metric, and its cache folder, after its class
    EvaluateMetric.__module__, EvaluateMetric.__doc__ = cls.__module__, cls.__doc__
    EvaluateMetric.__name__ = EvaluateMetric.__qualname__ = cls.__name__
    return EvaluateMetric


def paired_labels(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as class ids. Raises ValueError where they are not whole numbers, differ in length, or are empty."""
    import numpy as np

    predicted, true = _paired(predictions, references)
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iub" and not bool(np.all(values == np.floor(values))):
            raise ValueError(f"{name} must be class ids, which are whole numbers")
    return predicted.astype(np.int64), true.astype(np.int64)


def paired_numbers(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as numbers in double precision. Raises ValueError where they differ in length or are empty."""
    import numpy as np

    predicted, true = _paired(predictions, references)
    return predicted.astype(np.float64), true.astype(np.float64)


def _paired(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    import numpy as np

    predicted, true = np.asarray(predictions), np.asarray(references)
    if predicted.ndim != 1 or true.ndim != 1 or len(predicted) != len(true):
        raise ValueError(
            f"predictions and references must be lists of one length, found shapes {predicted.shape} and {true.shape}"
        )
    if len(predicted) == 0:
        raise ValueError("there is no example to score")
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iubf":
            raise ValueError(f"{name} must be numbers, found {values.dtype}")
        if values.dtype.kind == "f" and not bool(np.all(np.isfinite(values))):
            raise ValueError(f"{name} must be finite numbers, found NaN or infinity")
    return predicted, true


def paired_texts(predictions: Column, references: Column) -> tuple[Sequence[str], Sequence[str]]:
    """Both as lists of texts. Raises ValueError where they are no texts, differ in length, or are empty."""
    written, true = list(predictions), list(references)
    if len(written) != len(true):
        raise ValueError(f"predictions and references must be as many, found {len(written)} and {len(true)}")
    if not written:
        raise ValueError("there is no example to score")
    for name, texts in (("predictions", written), ("references", true)):
        wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{name} must be texts, found {wrong[0]}")
    return written, true
