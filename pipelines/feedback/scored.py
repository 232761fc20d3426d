"""Scoring the same completion once, however many comparisons it stands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
"""`scorer(prompts, completions)`: what a reward block opens as, a number for each pair of texts."""


def each_once(scorer: Scorer, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """The score of each completion of its prompt, in their order; equal pairs are scored once."""
    pairs = list(zip(prompts, completions, strict=True))
    different = list(dict.fromkeys(pairs))
    scores = scorer([prompt for prompt, _ in different], [completion for _, completion in different]) if different else []
    known = dict(zip(different, scores, strict=True))
    return [known[pair] for pair in pairs]
