"""Asking for the class of each word."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Score, Task


class Tags(Examiner):
    """The logits of each word's first token, in the task's order of classes."""

    def ask(self, asked: Asked) -> Answers:
        from pipelines.data.word_labels import collate_words, encode_words
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.labels import columns
        from pipelines.evaluation.predict import forward
        from pipelines.evaluation.tagged import Tagged

        names, name, length = asked.task.head.labels, asked.choice.name, asked.length()
        order = columns(names, asked.model.config, name, asked.choice.model)
        said = []
        for suffix, split, given in asked.splits():
            rows: Any = given
            parts = encode_words(asked.tokenizer, rows, length)
            logits = forward(asked.model, parts, partial(collate_words, asked.tokenizer), _of_tokens, **asked.running(split))
            found = _of_words(parts, logits, rows, len(names))
            said.append(Tagged(name, split, suffix, rows, [each if order is None else each[:, order] for each in found], names))
        return Answers(said, length, order)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.tagged import score_tags

        return score_tags(task)


def _of_tokens(outputs: Any, inputs: Any) -> list[Any]:
    """For each part (tokens, classes) without padding. Raises ModelError for a model without them, or whose training diverged."""
    import numpy as np

    from pipelines.errors import ModelError

    logits = outputs.logits.float().cpu().numpy()
    real = inputs["attention_mask"].numpy().astype(bool)
    if logits.ndim != 3 or logits.shape[:2] != real.shape:
        raise ModelError(
            f"the model gives outputs of shape {logits.shape} for {real.shape[0]} texts of {real.shape[1]} tokens, where one row a token "
            "is needed; evaluate a model with a token classification head"
        )
    if not np.isfinite(logits[real]).all():
        raise ModelError("the model gives NaN or infinity for a token: its training diverged, so lower its learning rate")
    return [row[mask] for row, mask in zip(logits, real, strict=True)]


def _of_words(parts: Any, logits: list[Any], rows: Any, classes: int) -> list[Any]:
    """Of each text (words, classes): the logits of its words' first tokens, NaN where a word has none."""
    import numpy as np

    found = [np.full((len(words), classes), np.nan, dtype=np.float32) for words in rows.words]
    for row, words, each in zip(parts.rows, parts.words, logits, strict=True):
        first = np.flatnonzero(words >= 0)
        found[row][words[first]] = each[first]
    return found
