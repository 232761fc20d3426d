"""Finished runs and publications side by side: each model tested against the first on the same examples.

A difference is called more than noise only where the p-value of the deciding test, corrected for all comparisons that
are shown, is at most 0.05.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject
from pipelines.core.load import load as load_recipe
from pipelines.core.paired_tests import ROUNDS
from pipelines.core.registry import nearest
from pipelines.core.results import MARKER
from pipelines.core.scores import smaller_is_better
from pipelines.evaluation.outcomes import OUTCOMES, SEED
from pipelines.evaluation.resampling import Estimate, paired_difference
from pipelines.metrics import statistics
from pipelines.metrics.statistics import (
    CORRECTIONS,
    SIGNIFICANCE_LEVEL,
    Correction,
    McNemar,
    corrected,
    mcnemar,
    p_of_draws,
    randomisation,
    shown,
)
from pipelines.reports.results import Result, published_results, results_of

Test = Literal["bootstrap", "randomisation", "mcnemar"]
TESTS: tuple[Test, ...] = ("bootstrap", "randomisation", "mcnemar")
NAMES = {"bootstrap": "paired bootstrap", "randomisation": "approximate randomisation", "mcnemar": "McNemar (exact)"}
"""How they are called where people read."""
BUSY = 2e6
"""Examples times rounds beyond which an answer in words is shuffled less often: each round counts all of them."""


@dataclass
class PairedTests:
    """What the tests say about two models on one benchmark."""

    differences: dict[str, Estimate] = field(default_factory=dict)
    """By score: the first model's minus the second's, with its bootstrap interval."""
    p_values: dict[str, dict[str, float]] = field(default_factory=dict)
    """By score, then by test."""
    mcnemar: McNemar | None = None
    """Of the answers that are simply right or wrong."""


def held_against(one: Result, other: Result, tests: tuple[Test, ...]) -> PairedTests:
    """The tests on every score of two models that were scored on the same examples."""
    tested = PairedTests()
    for metric in one.metrics:
        if metric not in one.draws or metric not in other.draws or metric not in other.metrics:
            continue
        drawn = one.draws[metric], other.draws[metric]
        estimate = paired_difference([one.metrics[metric]], [other.metrics[metric]], [drawn[0]], [drawn[1]], SEED)
        if estimate is None:
            continue
        tested.differences[metric] = estimate
        if "bootstrap" in tests:
            tested.p_values.setdefault(metric, {})["bootstrap"] = p_of_draws(drawn[0] - drawn[1], estimate.value)
    if "randomisation" in tests:
        for metric, p_value in _shuffled(one, other).items():
            if metric in tested.differences:
                tested.p_values.setdefault(metric, {})["randomisation"] = p_value
    if "mcnemar" in tests:
        tested.mcnemar = _judged(one, other)
        if tested.mcnemar is not None and one.main in tested.differences:
            tested.p_values.setdefault(one.main, {})["mcnemar"] = tested.mcnemar.exact
    return tested


def _shuffled(one: Result, other: Result) -> dict[str, float]:
    """Approximate randomisation, split by split."""
    tested: dict[str, float] = {}
    for suffix, part in one.parts.items():
        against: Any = other.parts.get(suffix)
        if against is None or type(against) is not type(part):
            continue
        scored = _swapper(part, against)
        rounds = max(199, min(ROUNDS, int(BUSY / len(part))))
        tested |= {f"{name}{suffix}": value for name, value in randomisation(len(part), scored, SEED, rounds).items()}
    return tested


def _swapper(part: Any, against: Any) -> Any:
    return lambda swapped: (part.mixed(against, swapped), against.mixed(part, swapped))


def _judged(one: Result, other: Result) -> McNemar | None:
    """McNemar's test on the split of the main score."""
    for suffix, part in one.parts.items():
        against = other.parts.get(suffix)
        if one.main.endswith(suffix) and against is not None and part.right is not None and against.right is not None:
            return mcnemar(part.right, against.right)
    return None


@dataclass
class RunComparison:
    """One model on one benchmark, beside the reference."""

    name: str
    result: Result
    same: bool
    """Whether it was scored on the reference's examples."""
    tested: PairedTests
    corrected: dict[str, float]
    """By test: the p-value of the main score, corrected."""


def compare(folders: Sequence[Path], test: str = "all", correction: str = "holm") -> JSONObject:
    """What `finery compare` says, as plain data. Raises CommandError where the runs have nothing in common."""
    tests, how = _tests_and_correction(test, correction)
    measured: dict[str, list[tuple[str, Result]]] = {}
    names = _names(folders)
    for name, folder in zip(names, folders, strict=True):
        results = _finished(folder)
        for result in results:
            several = sum(other.benchmark == result.benchmark for other in results) > 1
            measured.setdefault(result.benchmark, []).append((f"{name}:{result.model}" if several else name, result))
    shared = {name: models for name, models in measured.items() if len(models) > 1}
    if not shared:
        measured_by = "; ".join(
            f"{name}: {', '.join(dict.fromkeys(each.benchmark for each in _finished(folder))) or 'nothing'}"
            for name, folder in zip(names, folders, strict=True)
        )
        raise CommandError(f"the runs have no benchmark in common ({measured_by}); evaluate them on the same ones")
    notes = [
        f"{benchmark} was measured by {models[0][0]} alone."
        for benchmark, models in measured.items()
        if len(models) == 1
    ]
    compared = {
        benchmark: [_compared(each, models[0], tests) for each in models] for benchmark, models in shared.items()
    }
    family = [each for models in compared.values() for each in models[1:]]
    for name in tests:
        _correct(family, name, how)
    decided = [each for each in family if tests[0] in each.corrected]
    sections = [_side_by_side(benchmark, models, tests[0], how, len(decided)) for benchmark, models in compared.items()]
    return {
        "benchmarks": sections,
        "notes": notes,
        "tests": list(tests),
        "test": tests[0],
        "correction": how,
        "comparisons": len(decided),
        "warnings": [warning for each in sections for warning in each.pop("warnings")],
    }


def _tests_and_correction(test: str, correction: str) -> tuple[tuple[Test, ...], Correction]:
    """The tests that are made, the deciding one first, and the correction. Raises CommandError."""
    if test not in ("all", *TESTS):
        raise CommandError(
            f"--test is '{test}', must be one of all, {', '.join(TESTS)}.{nearest(test, ('all', *TESTS))}"
        )
    if correction not in CORRECTIONS:
        raise CommandError(
            f"--correction is '{correction}', must be one of "
            f"{', '.join(CORRECTIONS)}.{nearest(correction, CORRECTIONS)}"
        )
    chosen = TESTS if test == "all" else tuple(each for each in TESTS if each == test)
    return chosen, next(each for each in CORRECTIONS if each == correction)


def _compared(model: tuple[str, Result], reference: tuple[str, Result], tests: tuple[Test, ...]) -> RunComparison:
    name, result = model
    first = result is reference[1]
    same = first or result.same_examples(reference[1])
    return RunComparison(
        name, result, same, PairedTests() if first or not same else held_against(result, reference[1], tests), {}
    )


def _correct(family: Sequence[RunComparison], test: Test, how: Correction) -> None:
    """Correct the p-values of the main scores, which are what is claimed."""
    able = [each for each in family if test in each.tested.p_values.get(each.result.main, {})]
    for each, p_value in zip(
        able, corrected([each.tested.p_values[each.result.main][test] for each in able], how), strict=True
    ):
        each.corrected[test] = p_value


def _side_by_side(
    benchmark: str, models: Sequence[RunComparison], test: Test, how: Correction, count: int
) -> dict[str, Any]:
    reference = models[0]
    columns: list[JSONObject] = []
    sentences: list[str] = []
    warnings: list[str] = []
    for each in models:
        verdict = "reference" if each is reference else _verdict(each, test)
        columns.append(_column(each, verdict, test))
        if each is not reference:
            sentences.append(_sentence(each, reference.name, verdict, test, how, count))
        if verdict == "inside the noise":
            warnings.append(
                f"{benchmark}: the difference between {each.name} and {reference.name} is inside the noise; "
                "do not choose by it"
            )
    return {
        "benchmark": benchmark,
        "reference": reference.name,
        "metrics": list(dict.fromkeys(metric for each in models for metric in each.result.metrics)),
        "models": columns,
        "sentences": sentences,
        "warnings": warnings,
    }


def _column(compared: RunComparison, verdict: str, test: Test) -> JSONObject:
    """One model, as plain data."""
    result, tested = compared.result, compared.tested
    metrics: dict[str, Any] = {}
    for metric, value in result.metrics.items():
        estimate = tested.differences.get(metric)
        p_value = tested.p_values.get(metric, {}).get(test)
        difference = estimate and {
            "value": estimate.value,
            "interval": [estimate.low, estimate.high],
            "clear": estimate.clear,
            "p": tested.p_values.get(metric, {}),
            "corrected": compared.corrected if metric == result.main else None,
            "verdict": verdict if metric == result.main else _verdict_on(metric, tested, p_value, test),
            "verdict_alone": _verdict_on(metric, tested, p_value, test),
        }
        interval = list(result.intervals[metric]) if metric in result.intervals else None
        metrics[metric] = {"value": value, "interval": interval, "difference": difference}
    split = tested.mcnemar
    return {
        "name": compared.name,
        "model": result.model,
        "stage": result.stage,
        "reference": verdict == "reference",
        "verdict": verdict,
        "metrics": metrics,
        "mcnemar": split
        and {
            "only_here": split.only_first,
            "only_reference": split.only_second,
            "exact": split.exact,
            "mid": split.mid,
        },
        "costs": result.costs,
        "examples": result.examples,
        "same_examples": compared.same,
    }


def _verdict(each: RunComparison, test: Test) -> str:
    """`better`, `worse`, `inside the noise`, or nothing where the test cannot be made."""
    return _verdict_on(each.result.main, each.tested, each.corrected.get(test), test)


def _verdict_on(metric: str, tested: PairedTests, p_value: float | None, test: Test) -> str:
    difference = tested.differences.get(metric)
    if difference is None or p_value is None:
        return ""
    if p_value > SIGNIFICANCE_LEVEL or (test == "bootstrap" and not difference.clear):
        return "inside the noise"
    if test == "mcnemar" and tested.mcnemar is not None:  # it judges right answers, whatever the main score is
        return "better" if tested.mcnemar.only_first > tested.mcnemar.only_second else "worse"
    return "better" if (difference.value > 0) != smaller_is_better(metric) else "worse"


def _sentence(each: RunComparison, reference: str, verdict: str, test: Test, how: Correction, count: int) -> str:
    metric = each.result.main
    if not each.same:
        return f"{each.name} was not scored on the same examples as {reference}, so their difference has no interval."
    difference = each.tested.differences.get(metric)
    if difference is None:
        return (
            f"{each.name} and {reference}: {metric} cannot be resampled from their predictions, so the "
            "difference has no interval."
        )
    size = f"{metric} {difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"
    if not verdict:
        return (
            f"{each.name} against {reference}: {size}; {NAMES[test]} cannot be made, as answers are not simply "
            "right or wrong."
        )
    alone, together = each.tested.p_values[metric][test], each.corrected[test]
    p_value = f"{NAMES[test]} p {shown(alone)}"
    if count > 1 and how != "none":
        p_value += f", {shown(together)} after {statistics.NAMES[how]} for {count} comparisons"
    if verdict == "inside the noise":
        return f"{each.name} against {reference}: {size}, inside the noise of the examples ({p_value})."
    return (
        f"{each.name} is {verdict} than {reference} on these examples: {size} ({p_value}). Another training "
        "seed may move it."
    )


def _finished(folder: Path) -> list[Result]:
    """What a finished run measured, or what a publication carries of it. Raises CommandError, DataError."""
    if (folder / MARKER).is_file():
        if not (folder / OUTCOMES).is_file():
            raise CommandError(
                f"{folder} was published without {OUTCOMES}, so nobody can say how it did on each example; run its "
                "recipe again, which reuses what is trained and publishes it with them"
            )
        if not (carried := published_results(folder)):
            raise CommandError(f"{folder} carries no scores: its recipe has no evaluate stage with public labels")
        return carried
    try:
        finished = "finished" in json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        finished = False
    if not finished:
        raise CommandError(f"{folder} is not a finished run; continue it with: finery resume {folder}")
    results = results_of(folder, load_recipe(folder / "recipe.yaml"))
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
