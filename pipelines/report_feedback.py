"""What a run's report shows of its feedback stages: how far the judge can be trusted, and the way to the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import plots

MEASURES = {
    "order_consistency": "same verdict in both orders",
    "position_bias": "what is shown first is taken",
    "length_bias": "the longer one wins",
    "self_consistency": "same verdict when asked again",
    "transitivity": "triples without a circle",
    "human_agreement": "agrees with held labels",
}
"""Parts of `details.json` that are shares with an interval, and how they are called."""


def blocks(judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A block for each feedback stage: `judged` are the entries of `RunResults.judged`."""
    return [_block(each["stage"], each["page"], each["details"]) for each in judged]


def _block(stage: str, page: str, details: Mapping[str, Any]) -> dict[str, Any]:
    dots = []
    for key, called in MEASURES.items():
        share = details.get(key) or {}
        if share.get("value") is not None:
            dots.append(plots.Dot(called, share["value"], share["low"], share["high"], kind="model", note=f"({share['count']:,})"))
    return {"stage": stage, "page": page, "told": _told(details), "plot": plots.dot_plot(dots, "share") if dots else ""}


def _told(details: Mapping[str, Any]) -> str:
    """What the judge was asked and what came of it, in words."""
    spent = details.get("spent") or {}
    told = (
        f"{details['comparisons']:,} pairs of {details['completions']:,} completions of {details['prompts']:,} prompts were compared; "
        f"{details['preferences']:,} became preferences, {details['abstentions']:,} were abstentions, {details['ties']:,} ties."
    )
    tokens = spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0)
    told += f" The judge answered {spent['questions']:,} questions" if spent.get("questions") else ""
    told += f" with {tokens:,} tokens" if tokens else ""
    told += f" for {spent['cost']:.4g}" if spent.get("cost") else ""
    return told + "." if spent.get("questions") else told
