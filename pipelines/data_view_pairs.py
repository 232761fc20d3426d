"""Pairs of answers in `finery data show`: both sides, each with what the model learns to write of it; a reward model reads all of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.protocols import Context

SIDES = ("chosen", "rejected")


def learns_pairs(stage: Any) -> bool:
    """Whether a stage's examples are pairs of answers."""
    return hasattr(stage, "preference_rows")


def shown(context: Context, listener: Any, stage: Any, rows: int) -> dict[str, Any]:
    """The stage's pairs: what it says about them, and the first of them, each as two rows."""
    from pipelines.trainers.first_batch import summary

    tokenizer = context.open_tokenizer()
    examples = _examples(context, stage, tokenizer)
    said: dict[str, Any] = next(iter(listener.taken("sample")), {})
    pairs = [pieces_of(tokenizer, examples[at]) for at in range(min(rows, len(examples)))]
    learnt, tokens = _learnt(examples)
    return {
        "id": stage.id,
        "task": stage.task if isinstance(stage.task, str) else stage.id,
        "kind": "preference",
        "learnt_share": learnt / max(1, tokens),
        **{key: said[key] for key in ("format", "truncated", "left_out") if key in said},
        "examples": len(examples),
        "lengths": summary(examples.lengths),
        "rows": [
            {"pieces": [list(piece) for piece in pair[side]], "answer": f"the {side} answer of pair {at}", "tokens": _tokens(examples[at - 1], side)}
            for at, pair in enumerate(pairs, start=1)
            for side in SIDES
        ],
        "warnings": [each["message"] for each in listener.taken("warning")],
        "notes": [each["message"] for each in listener.taken("progress") if "message" in each],
    }


def _examples(context: Context, stage: Any, tokenizer: Any) -> Any:
    from pipelines.fields.positions import usable_positions
    from pipelines.trainers.preference_batches import pairs_for

    if stage.scores:
        teacher = stage.teacher()
        model = context.open_model(teacher.head(stage, None))
        return teacher.prepare(stage, None, context, model, tokenizer, usable_positions(model.config)).examples
    from pipelines.trainers import policy

    model, _ = policy.opened(stage, context)
    return pairs_for(stage, context, model, tokenizer, usable_positions(model.config))[0]


def pieces_of(tokenizer: Any, example: Any) -> dict[str, list[tuple[str, bool]]]:
    """Both sides of a pair as runs of text that are learnt, or are not."""
    from pipelines.trainers.preference_look import pair_pieces

    return pair_pieces(tokenizer, example)


def _tokens(example: Any, side: str) -> int:
    ids: Sequence[int] = example[side]["input_ids"] if isinstance(example[side], dict) else example[side]
    return len(ids) + len(example.get("source", ()))


def _learnt(examples: Any) -> tuple[int, int]:
    """(tokens that are learnt, all tokens) of both sides."""
    labels = [row for side in SIDES for row in getattr(examples, f"{side}_labels", ())]
    total = sum(_tokens(examples[at], side) for at in range(len(examples)) for side in SIDES)
    return sum(label != -100 for row in labels for label in row), total
