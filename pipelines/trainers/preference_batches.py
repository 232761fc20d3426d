"""From a stage's pairs to what its loop is fed: examples and the collator that puts both answers into one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.data.preference_pairs import PairsTogether, PreferencePairs, encode_preferences
from pipelines.trainers.completing import stops_of
from pipelines.trainers.preference_look import tell_pairs

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.trainers.preference_subject import PreferenceSubject


def pairs_for(
    subject: PreferenceSubject, context: Context, model: Any, tokenizer: Any, longest: int | None
) -> tuple[PreferencePairs, PairsTogether]:
    """(the pairs, their collator) for a model that names tokens; no row is longer than `longest` tokens. Raises DataError."""
    from pipelines.data.completions import padding_token
    from pipelines.objectives.rows import start_token

    rows = subject.preference_rows(context, tokenizer)
    both, limit, prompt = _limits(subject, model, longest)
    examples = encode_preferences(tokenizer, rows, limit, prompt, both, stops_of(model))
    tell_pairs(context, tokenizer, examples, rows, limit)
    return examples, PairsTogether(padding_token(tokenizer), start_token(model.config, tokenizer) if both else None)


def held_out_for(
    subject: Any, model: Any, tokenizer: Any, longest: int | None, most: int
) -> tuple[PreferencePairs | None, list[tuple[int, int]]]:
    """(the first `most` held-out pairs of the stage's task, encoded as those for training; the characters of their two answers,
    uncut). None where there is no task. `tokenizer` has its chat template already: see `pairs_for`. Raises DataError.
    """
    if subject.task is None:
        return None, []
    task = subject.resolved(subject.id)
    rows = task.rows(next(iter(task.evaluation_splits.values())), most)
    if len(rows) == 0:
        return None, []
    both, limit, prompt = _limits(subject, model, longest)
    turned = rows.in_turns() if subject.chat_template is not None else rows
    examples = encode_preferences(tokenizer, turned, limit, prompt, both, stops_of(model))
    sizes = {
        number: (len(chosen.completion), len(rejected.completion))
        for number, chosen, rejected in zip(rows.index, rows.chosen, rows.rejected, strict=True)
    }
    return examples, [sizes[number] for number in examples.index]


def _limits(subject: PreferenceSubject, model: Any, longest: int | None) -> tuple[bool, int, int | None]:
    """(whether the model is an encoder-decoder, tokens of a row or an answer, tokens of a prompt)."""
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    prompt = subject.max_prompt_length
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    return both, limit, prompt if prompt is None or longest is None else min(prompt, longest)
