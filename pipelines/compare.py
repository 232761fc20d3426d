"""Finished runs side by side: the same benchmarks, each model held against the first on the same examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import recipe as recipes
from pipelines.errors import CommandError
from pipelines.fields.scores import SMALLER_IS_BETTER
from pipelines.study_results import SEED, Result, results_of
from pipelines.study_statistics import paired_difference


def compare(folders: Sequence[Path]) -> dict[str, Any]:
    """What `finery compare` says, as plain data. Raises CommandError where the runs have nothing in common."""
    measured: dict[str, list[tuple[str, Result]]] = {}
    names = _names(folders)
    for name, folder in zip(names, folders, strict=True):
        results = _finished(folder)
        for result in results:
            several = sum(other.benchmark == result.benchmark for other in results) > 1
            measured.setdefault(result.benchmark, []).append((f"{name}:{result.model}" if several else name, result))
    shared = {name: models for name, models in measured.items() if len(models) > 1}
    if not shared:
        told = "; ".join(f"{name}: {', '.join(dict.fromkeys(each.benchmark for each in _finished(folder))) or 'nothing'}" for name, folder in zip(names, folders, strict=True))
        raise CommandError(f"the runs have no benchmark in common ({told}); evaluate them on the same ones")
    notes = [f"{benchmark} was measured by {models[0][0]} alone." for benchmark, models in measured.items() if len(models) == 1]
    return {"benchmarks": [_side_by_side(benchmark, models) for benchmark, models in shared.items()], "notes": notes}


def _side_by_side(benchmark: str, models: Sequence[tuple[str, Result]]) -> dict[str, Any]:
    reference_name, reference = models[0]
    told: list[dict[str, Any]] = []
    sentences: list[str] = []
    for name, result in models:
        first = result is reference
        same = first or result.same_examples(reference)
        metrics: dict[str, Any] = {}
        for metric, value in result.metrics.items():
            difference = None
            if not first and same and metric in reference.metrics and metric in result.draws and metric in reference.draws:
                found = paired_difference([value], [reference.metrics[metric]], [result.draws[metric]], [reference.draws[metric]], SEED)
                if found is not None:
                    difference = {"value": found.value, "interval": [found.low, found.high], "clear": found.clear}
            metrics[metric] = {"value": value, "interval": list(result.intervals[metric]) if metric in result.intervals else None, "difference": difference}
        told.append({"name": name, "model": result.model, "stage": result.stage, "reference": first, "metrics": metrics, "costs": result.costs, "examples": result.examples})
        if not first:
            sentences.append(_sentence(name, reference_name, result.main, metrics[result.main]["difference"], same))
    names = list(dict.fromkeys(metric for _, result in models for metric in result.metrics))
    return {"benchmark": benchmark, "reference": reference_name, "metrics": names, "models": told, "sentences": sentences}


def _sentence(name: str, reference: str, metric: str, difference: dict[str, Any] | None, same: bool) -> str:
    if not same:
        return f"{name} was not scored on the same examples as {reference}, so their difference has no interval."
    if difference is None:
        return f"{name} and {reference}: {metric} cannot be resampled from their predictions, so the difference has no interval."
    low, high = difference["interval"]
    size = f"{metric} {difference['value']:+.3f} ({low:+.3f} to {high:+.3f})"
    if not difference["clear"]:
        return f"{name} against {reference}: {size}, inside the noise of the examples."
    better = (difference["value"] > 0) != (metric in SMALLER_IS_BETTER)
    return f"{name} is {'better' if better else 'worse'} than {reference} on these examples: {size}. Another training seed may move it."


def _finished(folder: Path) -> list[Result]:
    """What a finished run measured. Raises CommandError."""
    try:
        finished = "finished" in json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        finished = False
    if not finished:
        raise CommandError(f"{folder} is not a finished run; continue it with: finery resume {folder}")
    results = results_of(folder, recipes.load(folder / "recipe.yaml"))
    if not results:
        raise CommandError(f"{folder} measured nothing: its recipe has no evaluate stage with public labels")
    return results


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path that tells it from the others."""
    paths = [folder.absolute().parts for folder in folders]
    names = []
    for at, parts in enumerate(paths):
        for count in range(1, len(parts) + 1):
            if not any(other[-count:] == parts[-count:] for position, other in enumerate(paths) if position != at):
                break
        names.append("/".join(parts[-count:]))
    return names
