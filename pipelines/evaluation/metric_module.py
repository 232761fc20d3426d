"""A pure metric function as an `evaluate.Metric`, for `add_batch`, `compute` and `evaluate.combine`.

`evaluate.load` fetches metric scripts over the network; these classes need none. Importing `evaluate` takes five
seconds, so each metric's module makes its class only when somebody asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal


def metric_module(
    module: str,
    name: str,
    compute: Callable[..., dict[str, float]],
    values: Literal["int64", "float64", "string", "answers", "tags"],
    description: str,
) -> type:
    """The class `name` of `module`: an `evaluate.Metric` over `compute(predictions, references, **options)`.

    `values` are what both hold: numbers or texts; `answers` are a text and a list of right ones, `tags` two lists of texts.
    """
    import datasets
    import evaluate

    text, texts = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
    one, other = {"answers": (text, texts), "tags": (texts, texts)}.get(values) or (datasets.Value(values), datasets.Value(values))

    class ProjectMetric(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=description,
                citation="",
                inputs_description=compute.__doc__ or "",
                features=datasets.Features({"predictions": one, "references": other}),
            )

        def _compute(self, *, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            return compute(predictions, references, **options)

    # `evaluate` names a metric, and its cache folder, after its class
    ProjectMetric.__module__, ProjectMetric.__name__, ProjectMetric.__qualname__ = module, name, name
    ProjectMetric.__doc__ = description
    return ProjectMetric


def on_demand(module: str, name: str, *rest: Any) -> Callable[[str], type]:
    """The `__getattr__` of a metric's module: it knows one name, that of the class made by `metric_module(module, name, *rest)`."""
    made = cache(lambda: metric_module(module, name, *rest))

    def get(wanted: str) -> type:
        if wanted == name:
            return made()
        raise AttributeError(f"module '{module}' has no attribute '{wanted}'")

    return get
