"""The audit page: what the judge was shown and what it said, for people to look at.

Everything on it was written by models or stands in data: it is escaped, and the page runs no script and loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.core.pages import render

if TYPE_CHECKING:
    from pipelines.feedback.feedback import Feedback
    from pipelines.feedback.judges.judge import Verdict
    from pipelines.feedback.pairs import JudgedPrompt, Pair
    from pipelines.feedback.progress import Row

SHOWN = 8
"""Examples of each kind."""
TORN = 0.25
"""A probability within so much of one half is torn."""
LONGEST = 1500
"""Letters of a text."""


def audit_page(
    recipe: str,
    stage_id: str,
    stage: Feedback,
    judged: Sequence[JudgedPrompt],
    preferences: Sequence[Mapping[str, Any]],
    revised: Sequence[Row],
    details: Mapping[str, Any],
) -> str:
    """The page as HTML."""
    return render(
        __package__,
        "audit.html.jinja",
        name=recipe,
        stage=stage_id,
        judge=stage.judge.name,
        settings=stage.judge.identity(),
        details=details,
        measures=_measures(details),
        groups=_groups(judged),
        revisions=[_revision(each["row"]) for each in revised if each["row"] is not None][:SHOWN],
        kept=len(preferences),
    )


def _groups(judged: Sequence[JudgedPrompt]) -> list[Row]:
    """Examples where the judge is sure, torn, of two minds, or silent."""
    rows = [(own, pair, verdict) for own in judged for pair, verdict in own.verdicts.items()]
    decided = [each for each in rows if each[2].decided]
    by_margin = sorted(decided, key=lambda each: -abs(each[2].probability - 0.5))
    kinds = [
        ("Where the judge is surest", by_margin[:SHOWN]),
        ("Where it is torn", [each for each in reversed(by_margin) if abs(each[2].probability - 0.5) <= TORN][:SHOWN]),
        ("Where the order of showing decides", [each for each in rows if each[2].consistent is False][:SHOWN]),
        ("Where it abstained", [each for each in rows if each[2].abstained][:SHOWN]),
    ]
    return [
        {"title": title, "examples": [_example(*each) for each in examples]} for title, examples in kinds if examples
    ]


def _example(own: JudgedPrompt, pair: Pair, verdict: Verdict) -> Row:
    notes = [f"P(A is better) = {verdict.probability:.3f}"]
    if verdict.shown_first is not None and verdict.shown_second is not None:
        notes.append(f"{verdict.shown_first:.3f} with A first, {verdict.shown_second:.3f} with A second")
    if own.principles.get(pair):
        notes.append(f"by the principle '{own.principles[pair]}'")
    notes.append(f"row {own.number + 1}")
    return {
        "prompt": _cut(str(own.prompt)),
        "first": _cut(own.texts[pair[0]]),
        "second": _cut(own.texts[pair[1]]),
        "told": "; ".join(notes),
        "reason": _cut(verdict.reason),
        "winner": "A" if verdict.decided and verdict.probability > 0.5 else "B" if verdict.decided else "",
    }


def _revision(row: Mapping[str, Any]) -> Row:
    prompt = (
        row["prompt"] if isinstance(row["prompt"], str) else "\n\n".join(str(each["content"]) for each in row["prompt"])
    )
    completion = row["completion"] if isinstance(row["completion"], str) else row["completion"][0]["content"]
    return {
        "prompt": _cut(prompt),
        "original": _cut(row["original"]),
        "critique": _cut(row["critique"]),
        "revision": _cut(completion),
        "principle": row["principle"],
    }


def _measures(details: Mapping[str, Any]) -> list[list[str]]:
    """The table of what was measured of the judge: its name, its value, its interval, what it is of, and what it
    would be at best."""
    rows = []
    for key, called, best in (
        ("order_consistency", "the same preferred in both orders", "1"),
        ("position_bias", "what is shown first is taken", "0.5"),
        ("length_bias", "the longer one wins", "0.5 if length is no merit"),
        ("self_consistency", "the same said when asked again", "1"),
        ("transitivity", "triples of completions without a circle", "1"),
        ("human_agreement", "agrees with the labels held against it", "1"),
    ):
        each = details[key]
        if each["value"] is not None:
            rows.append(
                [called, f"{each['value']:.3f}", f"{each['low']:.3f} – {each['high']:.3f}", f"{each['count']:,}", best]
            )
    if details["length_bias"]["correlation"] is not None:
        rows.append(
            [
                "rank correlation of length and preference",
                f"{details['length_bias']['correlation']:+.3f}",
                "",
                f"{details['comparisons']:,}",
                "0 if length is no merit",
            ]
        )
    return rows


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
