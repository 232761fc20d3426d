"""Asking a decoder to go on: how likely it finds the right answers, and what it writes itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.data import chat_templates
from pipelines.evaluation.asking import Asked, Examiner
from pipelines.evaluation.choice import trained_by
from pipelines.recipe import START

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.evaluation.choice import Choice
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.protocols import Score, Task
    from pipelines.recipe import Recipe


class Continuations(Examiner):
    """Perplexity and bits per byte of the answers, and a written answer to each prompt where the rows have prompts."""

    def mistakes(self, stage: Evaluate, choice: Choice, recipe: Recipe) -> Iterable[Found]:
        if stage.generation.model_fields_set & {"iterations", "length_beam"}:
            yield ("generation",), "sets iterations or length_beam, which are for mask-predict; a decoder writes one token after another"

    def ask(self, asked: Asked) -> Answers:
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.completed import Completed
        from pipelines.evaluation.completion_likelihood import likelihoods
        from pipelines.evaluation.continuing import continue_prompts, how

        template = template_of(asked)
        tokenizer = asked.tokenizer if asked.choice.model == START else asked.context.open_tokenizer(asked.choice.model)
        length, name = asked.length(), asked.choice.name
        settings = how(asked.model, tokenizer, asked.stage.generation)
        said, called = [], None
        for suffix, split, rows in asked.splits():
            given: Any = rows
            dialogues = [each.in_turns() for each in given.dialogues] if template else list(given.dialogues)
            if any(each.templated for each in dialogues):
                called = chat_templates.adopt(tokenizer, template)
            tally = likelihoods(asked.model, tokenizer, dialogues, length, **asked.running(split))
            asks = all(len(each.messages) > 1 for each in dialogues)
            texts = continue_prompts(asked.model, tokenizer, dialogues, settings, **asked.running(f"{split}, writing")) if asks else None
            said.append(Completed(name, split, suffix, rows, texts, tally))
        details = {"chat_template": called, "train_on": "completions"}
        return Answers(said, length, generation=settings.words() if any(each.texts is not None for each in said) else None, details=details)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.completed import score_completions

        return score_completions(task)


def template_of(asked: Asked) -> str | None:
    """The chat template that the stage names, else that of the stage that trained the model; None leaves it to the tokenizer."""
    return asked.stage.chat_template or getattr(trainer_of(asked), "chat_template", None)


def trainer_of(asked: Asked) -> Any:
    """What the model learnt, as its stage says it; None for a model that was trained on no task."""
    return trained_by(asked.context.recipe.stages).get(asked.choice.model)
