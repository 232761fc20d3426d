"""What the report of a run says of a model's own completions: whether they win, at what distance, and some of them side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines import plots

if TYPE_CHECKING:
    from pipelines.run_results import Scored

LONGEST = 600
"""Letters of a text on the page."""


def of(scored: Scored) -> Mapping[str, Any] | None:
    """What `details.json` says of the completions; None where something else was scored."""
    found: Mapping[str, Any] | None = scored.about.get("policy")
    return found


def sentence(scored: Scored) -> str:
    """How often the model wins against the other, and how far it went from it; empty where there is no other."""
    about = of(scored)
    if about is None or about.get("against") is None or "win_rate" not in scored.metrics:
        return ""
    won, around = scored.metrics["win_rate"], scored.intervals.get("win_rate")
    told = f"Its completions score higher than those of '{about['against']}' for {won:.1%} of the prompts, ties counted half"
    if around is not None:
        told += f" (95 %: {around[0]:.1%} – {around[1]:.1%})"
        told += ", which may be chance" if around[0] <= 0.5 <= around[1] else ""
    told += f"; rewards {scored.metrics['reward']:.4g} against {scored.metrics['reward_against']:.4g}"
    if "kl" in scored.metrics:
        told += f", at a KL divergence of {scored.metrics['kl']:.3g} nats a completion"
    return told + "."


def plot(scored: Scored, model: str) -> str:
    """The mean reward of both models, with intervals."""
    about = of(scored) or {}
    low, high = scored.intervals.get("reward", (None, None))
    dots = [plots.Dot(model, scored.metrics["reward"], low, high, kind="model")]
    if "reward_against" in scored.metrics:
        low, high = scored.intervals.get("reward_against", (None, None))
        dots.append(plots.Dot(str(about.get("against")), scored.metrics["reward_against"], low, high))
    return plots.dot_plot(sorted(dots, key=lambda dot: dot.value, reverse=True), "mean reward")


def samples(scored: Scored) -> list[dict[str, str]]:
    """Completions as the page shows them: `prompt`, `own`, `score`, and `other`, `score_against` or empty texts."""
    return [
        {
            "prompt": _cut(each["prompt"]), "own": _cut(each["completion"]), "score": f"{each['score']:.4g}", "other": _cut(each.get("against", "")),
            "score_against": f"{each['score_against']:.4g}" if "score_against" in each else "", "index": str(each["index"]),
        }
        for each in (of(scored) or {}).get("samples", [])
    ]  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
