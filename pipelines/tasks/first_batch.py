"""A look at what a stage is about to learn: the first examples with their loss mask, lengths, and what is wrong.

Wrong masks do not show in a loss curve, but in a model that never stops or repeats its prompt. So a stage that learns
answers, or pairs of answers, says what it reads before it starts, and `finery data show` says the same without
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.data.chat_templates import prompt_of, render
from pipelines.data.completions import Completions

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.data.chat_formats import Dialogue
    from pipelines.tasks.preference.rows import PreferenceRows


SHOWN = 2
"""Examples in the event."""
TRUNCATED_SHARE = 0.05
"""More rows than this share that lose their end are a warning."""
UNKNOWN_SHARE = 0.01
"""More unknown tokens than this share of the answers are a warning: they cannot be written again."""
ASKED = 50
"""Rows whose prompt is compared with what stands before the answer."""


@dataclass(frozen=True)
class Look:
    """What was found."""

    task: str
    format: str
    template: str | None
    """What joins the messages; None where nothing does."""
    examples: int
    truncated: int
    left_out: int
    learnt_share: float
    """Of all tokens, those that are learnt."""
    lengths: dict[str, float]
    """Tokens of the examples: the least, quartiles, and the most."""
    shown: list[list[tuple[str, bool]]]
    """The first examples as pieces of text, each learnt or not."""
    warnings: list[str]


def examined(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    examples: Completions,
    limit: int,
    task: str,
    format: str,
    template: str | None,
) -> Look:
    """Look at encoded dialogues."""
    learnt = sum(label != IGNORED for row in examples.labels for label in row)
    return Look(
        task,
        format,
        template,
        len(examples),
        examples.truncated,
        len(examples.left_out),
        learnt / max(1, int(examples.lengths.sum())),
        summary(examples.lengths),
        [
            pieces(tokenizer, examples.input_ids[at], [each != IGNORED for each in examples.labels[at]])
            for at in range(min(SHOWN, len(examples)))
        ],
        list(_doubts(tokenizer, dialogues, examples, limit, template)),
    )


def summary(lengths: Any) -> dict[str, float]:
    """The least, the quartiles and the most of some lengths."""
    if not len(lengths):
        return {}
    values = np.quantile(np.asarray(lengths), [0, 0.25, 0.5, 0.75, 1])
    return dict(zip(("least", "quarter", "median", "three_quarters", "most"), map(float, values), strict=True))


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], learnt: Sequence[bool]) -> list[tuple[str, bool]]:
    """The text of the tokens in runs that are learnt, or are not."""
    runs: list[tuple[str, bool]] = []
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or learnt[place] != learnt[start]:
            runs.append((tokenizer.decode(list(ids[start:place]), skip_special_tokens=False), bool(learnt[start])))
            start = place
    return runs


def token_pieces(
    tokenizer: PreTrainedTokenizerBase, ids: Tensor, learnt: Sequence[bool] | Tensor | bool
) -> list[list[Any]]:
    """The same as JSON, of a tensor of tokens (length,), each learnt or not, or all alike."""
    each = [learnt] * len(ids) if isinstance(learnt, bool) else [bool(one) for one in learnt]
    return [list(run) for run in pieces(tokenizer, ids.tolist(), each)]


def tell(context: Context, look: Look) -> None:
    """An event `sample` with the look, and a `warning` for each doubt; from one process."""
    if not context.world.is_main:
        return
    plain = asdict(look)
    warnings = plain.pop("warnings")
    context.events.emit("sample", **plain)
    for sentence in warnings:
        context.events.emit("warning", message=sentence)


def _doubts(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    examples: Completions,
    limit: int,
    template: str | None,
) -> Any:
    count = len(examples) + len(examples.left_out)
    if examples.truncated > TRUNCATED_SHARE * count:
        yield (
            f"{examples.truncated} of {count} rows ({examples.truncated / count:.1%}) are longer than {limit} "
            "tokens and lose the end of "
            "their last answer, so that they do not show where to stop; raise max_length"
        )
    if examples.left_out:
        yield (
            f"the loss mask of {len(examples.left_out)} of {count} rows is empty, the first is row "
            f"{examples.left_out[0] + 1}: their "
            f"prompts alone fill {limit} tokens, so they are left out; raise max_length"
        )
    endless = endings_missing(tokenizer, examples, limit)
    if endless:
        yield (
            f"{endless} of {len(examples)} rows end without a learnt end of text, so the model is not shown "
            "where to stop there"
        )
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        yield (
            f"the padding token is the end of text ({tokenizer.eos_token}): here padding is told by its place "
            "and the end is learnt all "
            "the same, but code that masks padding by its id would never learn to stop"
        )
    yield from _template_doubts(tokenizer, dialogues, template)
    answers = np.concatenate([np.asarray(row) for row in examples.labels])
    answers = answers[answers != IGNORED]
    if (
        tokenizer.unk_token_id is not None
        and (unknown := float((answers == tokenizer.unk_token_id).mean())) > UNKNOWN_SHARE
    ):
        yield (
            f"{unknown:.1%} of the learnt tokens are {tokenizer.unk_token}, which stands for no text; use a "
            "tokenizer that knows these characters"
        )


def endings_missing(tokenizer: PreTrainedTokenizerBase, examples: Completions, limit: int) -> int:
    """Rows that were not cut, and whose last token is learnt but is no token that ends a text."""
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id, *tokenizer.all_special_ids} - {None, tokenizer.unk_token_id}
    return sum(len(row) < limit and row[-1] != IGNORED and row[-1] not in ends for row in examples.labels)


def _template_doubts(tokenizer: PreTrainedTokenizerBase, dialogues: Sequence[Dialogue], template: str | None) -> Any:
    from pipelines.data.chat_templates import marks_of

    if template is None:
        return
    unknown = [
        mark for mark in marks_of(template) if tokenizer.convert_tokens_to_ids(mark) in (None, tokenizer.unk_token_id)
    ]
    if unknown:
        yield (
            f"the template {template} writes {', '.join(unknown)}, which the tokenizer does not have as "
            "tokens: they are split like "
            "other text, which works, but takes more tokens; a template without marks is 'simple'"
        )
    other = sum(_asks_otherwise(tokenizer, each) for each in dialogues[:ASKED] if each.templated)
    if other:
        yield (
            f"in {other} of the first {min(ASKED, len(dialogues))} rows the prompt that the chat template "
            "makes for an answer is not what "
            "stands before the answer that is learnt: the model will be asked otherwise than it was taught"
        )


def _asks_otherwise(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> bool:
    try:
        prompt, shown = prompt_of(tokenizer, dialogue), render(tokenizer, dialogue)
    except DataError:
        return True
    return not shown.text.startswith(prompt)


SIDES = ("chosen", "rejected")
SHOWN_PREFERENCE_LOOK = 1
"""Pairs in the event."""


def pair_pieces(tokenizer: PreTrainedTokenizerBase, example: dict[str, Any]) -> dict[str, list[tuple[str, bool]]]:
    """The text of both sides of a pair in runs that are learnt, or are not; behind the source where there is one."""
    if isinstance(example["chosen"], dict):  # a reward model reads all of it and names none
        return {side: [(tokenizer.decode(list(example[side]["input_ids"])), False)] for side in SIDES}
    source = pieces(tokenizer, example["source"], [False] * len(example["source"])) if "source" in example else []
    return {
        side: source + pieces(tokenizer, example[side], [label != IGNORED for label in example[f"{side}_labels"]])
        for side in SIDES
    }


def tell_pairs(
    context: Context, tokenizer: PreTrainedTokenizerBase, examples: Any, rows: PreferenceRows, limit: int
) -> None:
    """An event `sample` with the first pair, and a `warning` for each doubt; from one process."""
    if not context.world.is_main:
        return
    shown = [pair_pieces(tokenizer, examples[at]) for at in range(min(SHOWN_PREFERENCE_LOOK, len(examples)))]
    context.events.emit(
        "sample",
        what="pairs",
        format=rows.format,
        examples=len(examples),
        truncated=examples.truncated,
        left_out=len(examples.left_out),
        lengths=summary(examples.lengths),
        shown=shown,
    )
    count = len(examples) + len(examples.left_out)
    if examples.truncated > TRUNCATED_SHARE * count:
        message = (
            f"{examples.truncated} of {count} pairs ({examples.truncated / count:.1%}) are longer than {limit} "
            "tokens and lose the beginning of their prompt or the end of an answer; raise max_length"
        )
        context.events.emit("warning", message=message)
    if examples.left_out:
        message = (
            f"{len(examples.left_out)} of {count} pairs, the first is row {examples.left_out[0] + 1}, have "
            f"answers that do not differ within {limit} tokens and are left out; raise max_length"
        )
        context.events.emit("warning", message=message)
