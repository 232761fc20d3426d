"""Asking for the best of several options."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Score, Task


class Options(Examiner):
    """A logit for each option of each question."""

    def ask(self, asked: Asked) -> Answers:
        import numpy as np

        from pipelines.data.choices import collate_choices, encode_choices
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.chosen import Chosen
        from pipelines.evaluation.predict import forward

        length, name = asked.length(), asked.choice.name
        said, shared = [], {}
        for suffix, split, given in asked.splits():
            rows: Any = given
            examples = encode_choices(asked.tokenizer, rows, length)
            running = asked.running(split)
            if (found := _by_article(asked, rows, examples, running)) is not None:
                logits, shared[split] = found
                said.append(Chosen(name, split, suffix, rows, np.stack(logits)))
                continue
            running["batch_size"] = max(1, running["batch_size"] // max(rows.choices, 1))  # as many texts as of other tasks
            logits = forward(asked.model, examples, partial(collate_choices, asked.tokenizer), _logits, **running)
            said.append(Chosen(name, split, suffix, rows, np.stack(logits)))
        return Answers(said, length, details={"articles_read_once": shared} if shared else {})

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.chosen import score_options

        return score_options(task)


def _by_article(asked: Asked, rows: Any, examples: Any, running: Any) -> tuple[list[Any], dict[str, int]] | None:
    """(the logits, how many tokens were read) where what the questions of an article share needs to be read once only, else None."""
    from pipelines.data.completions import padding_token
    from pipelines.evaluation.shared_articles import articles_of, can_share, pays, read_articles

    if len(rows) == 0 or examples.token_type_ids is not None or not can_share(asked.model):
        return None
    articles = articles_of(rows.texts, examples)
    if not pays(articles):
        return None
    logits, shares = read_articles(asked.model, articles, rows.choices, padding_token(asked.tokenizer), **running)
    whole = sum(len(sequence) for question in examples.input_ids for sequence in question)
    return logits, {"articles": len(articles), "tokens": sum(each.tokens for each in articles) if shares else whole, "tokens_of_all": whole}


def _logits(outputs: Any, inputs: Any) -> Any:
    """(questions, options). Raises ModelError for a model that scores something else."""
    from pipelines.errors import ModelError

    logits = outputs.logits.float().cpu().numpy()
    wanted = tuple(inputs["input_ids"].shape[:2])
    if logits.shape != wanted:
        raise ModelError(f"the model gives outputs of shape {logits.shape}, where a multiple choice head gives {wanted}; evaluate one")
    return logits
