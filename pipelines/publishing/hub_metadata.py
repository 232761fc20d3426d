"""What the Hub reads of a publication: the card's YAML block with its `model-index`, and `.eval_results/*.yaml`.

Both say the scores. `model-index` holds every metric of every benchmark, as huggingface_hub's ModelCardData writes it.
`.eval_results` is the newer form (huggingface.co/docs/hub/eval-results), which the leaderboards of data sets read: one
main score for each task of a data set on the Hub, as huggingface_hub's EvalResultEntry writes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.core.interfaces import Head
from pipelines.core.recipe import Recipe
from pipelines.core.registry import METRICS
from pipelines.core.results import BenchmarkScores
from pipelines.core.yaml_positions import write_yaml
from pipelines.models.heads import HEAD_CLASSES
from pipelines.publishing import provenance

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData

Scores = Mapping[str, BenchmarkScores]
"""Of the published model, by benchmark."""
HUB_NAMES = {
    "glue": "nyu-mll/glue",
    "multi30k": "bentrevett/multi30k",
    "trec": "CogComp/trec",
    "imdb": "stanfordnlp/imdb",
    "ag_news": "fancyzhx/ag_news",
    "squad": "rajpurkar/squad",
    "squad_v2": "rajpurkar/squad_v2",
    "race": "ehovy/race",
}
"""Where the data of a benchmark's family lies on the Hub."""
SHOTS = re.compile(r"/\d+-shot$")
"""What the name of a benchmark ends with that is asked in prompts, with so many examples."""
TRANSLATION = ("multi30k/",)
"""Benchmarks on which models translate."""
EVAL_RESULTS = ".eval_results/finery.yaml"
"""The file of the newer form, in a publication."""


def metadata(
    recipe: Recipe,
    head: Head,
    scores: Scores,
    method: str | None,
    own_code: bool,
    license: str | None,
    learnt: Sequence[str] = (),
) -> ModelCardData:
    """The YAML block as a ModelCardData. `method` is the tuner's name, where an adapter is published; `learnt` are
    the data sets of the Hub that the model learnt from."""
    from huggingface_hub import ModelCardData

    results = list(_results(recipe.name, head, scores))
    checkpoint = recipe.model.checkpoint
    return ModelCardData(
        license=license,
        library_name="peft" if method else "transformers",
        pipeline_tag=_task_of(head, scores),
        base_model=checkpoint if checkpoint and provenance.is_hub_id(checkpoint) else None,
        datasets=sorted({*learnt, *(name for each in results if (name := each.dataset_type) in HUB_NAMES.values())})
        or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        tags=["finery", *(["custom_code"] if own_code else []), *([method] if method else [])],
        model_name=recipe.name if results else None,
        eval_results=results or None,
    )


def _task_of(head: Head, scores: Scores) -> str:
    """The Hub's word for what the model does: one that was scored on translation translates."""
    if any(benchmark.startswith(TRANSLATION) for benchmark in scores):
        return "translation"
    return HEAD_CLASSES[head.kind].pipeline_tag


def _results(name: str, head: Head, scores: Scores) -> Iterable[EvalResult]:
    from huggingface_hub import EvalResult

    for benchmark, scored in scores.items():
        if "policy" in scored.details:  # a reward of the recipe's own, which the Hub has no leaderboard for
            continue
        dataset, config = on_the_hub(benchmark)
        for metric, value in scored.metrics.items():
            if not math.isfinite(value):
                continue  # the Hub takes numbers only; the table below says it in words
            kind = kind_of_metric(metric)
            yield EvalResult(
                task_type=_task_of(head, scores),
                dataset_type=dataset or benchmark,
                dataset_name=benchmark,
                dataset_config=config,
                dataset_split=scored.splits.get(metric.removeprefix(kind)),
                metric_type=kind,
                metric_name=metric,
                metric_value=value,
            )


def kind_of_metric(metric: str) -> str:
    """`accuracy_mm` is an accuracy."""
    return next((name for name in METRICS if metric == name or metric.startswith(f"{name}_")), metric)


def on_the_hub(benchmark: str) -> tuple[str | None, str | None]:
    """(data set, configuration) of a benchmark on the Hub; (None, None) where it lies nowhere there."""
    family, _, config = SHOTS.sub("", benchmark).partition("/")
    return (HUB_NAMES[family], config or None) if family in HUB_NAMES else (None, None)


def evaluation_results(scores: Scores, date: str | None) -> str:
    """`.eval_results/*.yaml`: the main score on each benchmark of the Hub, its other scores in `notes`; empty without
    any. `date` (ISO 8601) is when they were measured."""
    from huggingface_hub import eval_result_entries_to_yaml

    entries = list(_entries(scores, date))
    return write_yaml(eval_result_entries_to_yaml(entries)) if entries else ""


def _entries(scores: Scores, date: str | None) -> Iterator[EvalResultEntry]:
    from huggingface_hub import EvalResultEntry

    for benchmark, scored in scores.items():
        dataset, config = on_the_hub(benchmark)
        if dataset is None or "policy" in scored.details or (defined := scored.defined()) is None:
            continue
        value = defined.metrics[defined.main]
        split = scored.splits.get(defined.main.removeprefix(kind_of_metric(defined.main)))
        notes = [f"{defined.main}{f' on {split}' if split else ''}"]
        if shots := SHOTS.search(benchmark):
            notes.append(shots[0].removeprefix("/"))
        counts = scored.details.get("examples")
        if isinstance(counts, Mapping):
            notes.append(f"{sum(counts.values()):,} examples")
        if ends := defined.intervals.get(defined.main):
            notes.append(f"95 % interval {ends[0]:.4g} to {ends[1]:.4g} over the examples")
        notes += [f"{name} {other:.4g}" for name, other in defined.metrics.items() if name != defined.main]
        yield EvalResultEntry(
            dataset_id=dataset, task_id=config or "default", value=value, date=date, notes="; ".join(notes)
        )
