"""Whether scores that were measured again agree with those that a publication states, and within what.

On the same kind of machine with the same versions every digit must be the same. Elsewhere floats are added in another
order: the same weights may then answer a few examples otherwise (`MARGIN`), and weights that were trained again are as
good as other weights of the same recipe are, within the 95 % interval that the publication states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.core.files import JSONObject
from pipelines.core.results import BenchmarkScores
from pipelines.core.scores import bounds

MARGIN = 0.005
"""What the same weights may score elsewhere, as a part of the score's range, or of the score where that is open."""
FEW = 2
"""Examples that may be answered otherwise in any case, where so small a set has fewer than MARGIN of them."""
ROUNDED = 1e-12
"""What a score may lose when it is written as JSON and read."""


@dataclass(frozen=True)
class Agreement:
    """One score, stated and measured again."""

    benchmark: str
    metric: str
    stated: float | None
    measured: float | None
    """None where it is undefined, or was not measured."""
    low: float | None
    high: float | None
    """Between what it must lie; None where it must be undefined too."""
    holds: bool

    def plain(self) -> JSONObject:
        """Plain data."""
        return asdict(self)

    def sentence(self) -> str:
        """What is wrong."""
        measured = "nothing" if self.measured is None else f"{self.measured:.6g}"
        name = f"{self.metric} of {self.benchmark}"
        if self.stated is None or self.low is None or self.high is None:
            return f"{name} is stated as undefined, and measured again it is {measured}"
        if self.low == self.high:
            return f"{name} is stated as {self.stated:.6g}, and measured again it is {measured}"
        return (
            f"{name} is stated as {self.stated:.6g}, and measured again it is {measured}, not within "
            f"{self.low:.6g} to {self.high:.6g}"
        )


def compare(
    stated: BenchmarkScores, measured: Mapping[str, float], exact: bool, by_interval: bool = False
) -> list[Agreement]:
    """Each score of one benchmark. `by_interval` allows what the stated 95 % interval holds, where there is one."""
    agreements = []
    for metric, value in stated.metrics.items():
        again = measured.get(metric, math.nan)
        low, high = _range(stated, metric, value, exact, by_interval)
        both = (
            not math.isfinite(value) and metric in measured and not math.isfinite(again)
        )  # a manifest has no infinity
        holds = both or low - ROUNDED <= again <= high + ROUNDED
        agreements.append(
            Agreement(
                stated.benchmark, metric, _number(value), _number(again), _number(low), _number(high), bool(holds)
            )
        )
    return agreements


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _range(stated: BenchmarkScores, metric: str, value: float, exact: bool, by_interval: bool) -> tuple[float, float]:
    if exact or math.isnan(value):
        return value, value
    margin = _margin(stated, metric, value)
    low, high = value - margin, value + margin
    if by_interval and metric in stated.intervals:
        low, high = min(low, stated.intervals[metric][0]), max(high, stated.intervals[metric][1])
    return low, high


def _margin(stated: BenchmarkScores, metric: str, value: float) -> float:
    """What the answers to a few examples make."""
    least, most = bounds(metric, [each for each in stated.metrics if each != metric])
    if not (math.isfinite(least) and math.isfinite(most)):
        return MARGIN * max(1.0, abs(value))
    counts = stated.details.get("examples")
    numbers = [counts] if isinstance(counts, int) else [*counts.values()] if isinstance(counts, Mapping) else []
    few = FEW / min(numbers) if numbers and min(numbers) > 0 else 0.0
    return max(MARGIN, few) * (most - least)


def differences_from(manifest: JSONObject, hardware: JSONObject, versions: Mapping[str, str]) -> list[str]:
    """In what this machine differs from the one that a manifest was written on, in words; empty for the same kind.

    `hardware` and `versions` are this machine's, as a manifest has them.
    """
    there: dict[str, Any] = dict(manifest.get("hardware") or {})
    found = []
    for key, word in (("processor", "processor"), ("threads", "number of threads")):
        if there.get(key) != hardware.get(key):
            found.append(f"the {word} is {hardware.get(key)}, there it was {there.get(key, 'not written down')}")
    before, now = (
        ", ".join(str(gpu.get("name")) for gpu in each.get("gpus") or ()) or "none" for each in (there, hardware)
    )
    if before != now:
        found.append(f"the GPUs are {now}, there they were {before}")
    stated: Mapping[str, str] = manifest.get("versions") or {}
    for package, version in stated.items():
        if versions.get(package) != version:
            found.append(f"{package} is {versions.get(package, 'not installed')}, there it was {version}")
    return found
