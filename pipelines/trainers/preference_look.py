"""A look at the pairs that a stage is about to learn from: the first of them with what is learnt, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.data.completions import IGNORED
from pipelines.trainers.first_batch import TRUNCATED_SHARE, pieces, summary

if TYPE_CHECKING:
    from pipelines.data.preferences import PreferenceRows
    from pipelines.protocols import Context

SIDES = ("chosen", "rejected")
SHOWN = 1
"""Pairs in the event."""


def pair_pieces(tokenizer: Any, example: dict[str, Any]) -> dict[str, list[tuple[str, bool]]]:
    """The text of both sides of a pair in runs that are learnt, or are not; behind the source where there is one."""
    if isinstance(example["chosen"], dict):  # a reward model reads all of it and names none
        return {side: [(tokenizer.decode(list(example[side]["input_ids"])), False)] for side in SIDES}
    source = pieces(tokenizer, example["source"], [False] * len(example["source"])) if "source" in example else []
    return {side: source + pieces(tokenizer, example[side], [label != IGNORED for label in example[f"{side}_labels"]]) for side in SIDES}


def tell_pairs(context: Context, tokenizer: Any, examples: Any, rows: PreferenceRows, limit: int) -> None:
    """An event `sample` with the first pair, and a `warning` for each doubt; from one process."""
    if not context.world.is_main:
        return
    shown = [pair_pieces(tokenizer, examples[at]) for at in range(min(SHOWN, len(examples)))]
    context.events.emit(
        "sample", what="pairs", format=rows.format, examples=len(examples), truncated=examples.truncated, left_out=len(examples.left_out),
        lengths=summary(examples.lengths), shown=shown,
    )  # fmt: skip
    count = len(examples) + len(examples.left_out)
    if examples.truncated > TRUNCATED_SHARE * count:
        message = f"{examples.truncated} of {count} pairs ({examples.truncated / count:.1%}) are longer than {limit} tokens and lose the beginning of their prompt or the end of an answer; raise max_length"
        context.events.emit("warning", message=message)
    if examples.left_out:
        message = f"{len(examples.left_out)} of {count} pairs, the first is row {examples.left_out[0] + 1}, have answers that do not differ within {limit} tokens and are left out; raise max_length"
        context.events.emit("warning", message=message)
