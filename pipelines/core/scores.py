"""How figures of an evaluation are read: which are scores, their bounds, and which are better when smaller."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from pipelines.core.registry import METRICS

COUNTS = ("tokens", "bytes", "pairs", "replaced")
"""What a figure of held-out text stands on."""
PEERS = ("unigram", "bigram", "majority")
"""Guessers whose figures stand beside the model's, under `<peer>_<score>`."""
SMALLER_IS_BETTER = ("bits_per_byte", "hidden_bits_per_byte", "perplexity", "kl", "kl_k3")
"""Scores of no metric of the METRICS table; everything else that no metric there gives is better when it is larger."""
POLICY_SCORES = ("reward", "win_rate", "kl", "kl_k3", "length", "distinct_2", "ended")
"""What is measured of a model's own completions; of the model beside it, under `<score>_against`."""

OTHER_BOUNDS = {
    **dict.fromkeys(
        ("acc", "mean_token_accuracy", "pair_accuracy", "win_rate", "distinct_2", "ended", "recall@"), (0.0, 1.0)
    ),
    **dict.fromkeys(SMALLER_IS_BETTER, (0.0, math.inf)),
}
"""Between what a score of no metric of the METRICS table, whose name begins like this, must lie."""


def score_names(metrics: Iterable[str]) -> tuple[str, ...]:
    """The names of the scores that these metrics give."""
    return tuple(name for metric in metrics for name in _scores_of(metric))


def _scores_of(metric: str) -> tuple[str, ...]:
    names: tuple[str, ...] = METRICS.load(metric).scores if metric in METRICS else ()
    return names or (metric,)


def percent_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    """Those whose scores lie between 0 and 100, as their official scorers print them."""
    return tuple(metric for metric in metrics if METRICS.load(metric).best == 100.0)


def bounds(score: str, beside: Iterable[str] = (), metrics: Iterable[str] = METRICS) -> tuple[float, float]:
    """Between what values a score of these metrics can lie; `beside` are the scores that came with it, which tell
    SQuAD's F1 (0 to 100) from others."""
    metric = _metric_of(score, beside, metrics)
    if metric is None:
        return next((pair for name, pair in OTHER_BOUNDS.items() if score.startswith(name)), (-math.inf, math.inf))
    ends = METRICS.load(metric).worst, METRICS.load(metric).best
    return min(ends), max(ends)


def is_percent(score: str, beside: Iterable[str] = ()) -> bool:
    """Whether a score lies between 0 and 100."""
    return bounds(score, beside)[1] == 100.0


def _metric_of(score: str, beside: Iterable[str], metrics: Iterable[str]) -> str | None:
    """The metric that gives a score, suffix of its split and all: of those with the longest name that it goes by the
    one with the most scores, if all of them are there."""
    present = [score, *beside]
    named = {metric: [name for name in _scores_of(metric) if _is(score, name)] for metric in metrics}
    longest = max((len(name) for names in named.values() for name in names), default=0)
    owners = [metric for metric, names in named.items() if any(len(name) == longest for name in names)]
    complete = [
        metric for metric in owners if all(any(_is(each, name) for each in present) for name in _scores_of(metric))
    ]
    return max(complete or owners[:1], key=lambda metric: len(_scores_of(metric)), default=None)


def _is(score: str, name: str) -> bool:
    """Whether a score goes by this name, on whatever split."""
    return score == name or score.startswith(f"{name}_")


def is_score(metric: str) -> bool:
    """Whether a figure is the model's own score, and neither a count nor a guesser's."""
    return metric not in COUNTS and not metric.startswith(tuple(f"{peer}_" for peer in PEERS))


def smaller_is_better(metric: str | None) -> bool:
    """Whether a small value of a figure is a good one: a score's, a guesser's or another model's beside it, a loss."""
    score = (metric or "").removesuffix("_against")
    score = next((score.removeprefix(f"{peer}_") for peer in PEERS if score.startswith(f"{peer}_")), score)
    return score == "loss" or score.endswith("_loss") or _falls(score, tuple(METRICS.items()))


@lru_cache(maxsize=1024)
def _falls(score: str, entries: tuple[tuple[str, str], ...]) -> bool:
    """Whether a score becomes smaller as a model improves: as its metric among the entries of METRICS says, and by name
    where it is of none."""
    metric = _metric_of(score, (), dict(entries))
    if metric is None:
        return score in SMALLER_IS_BETTER
    described = METRICS.load(metric)
    return bool(described.best < described.worst)


def better(metric: str, one: float, other: float) -> bool:
    """Whether the first of two values of a score is the better one."""
    return one < other if smaller_is_better(metric) else one > other
