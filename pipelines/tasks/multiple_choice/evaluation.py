"""Evaluating multiple choice: a logit for each option, and the accuracy of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Score, Task
from pipelines.core.presentation import FormField, Part, bars, field_of
from pipelines.metrics.calibration import softmax
from pipelines.metrics.classification import Accuracy
from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation, cut_sentence
from pipelines.tasks.multiple_choice.task import LETTERS
from pipelines.tasks.predictions import LogitPredictions, constant_prediction
from pipelines.tasks.scored_examples import Columns, ScoredExamples, decision_columns, scored_decisions
from pipelines.tasks.scoring import checked_logits

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers.utils import ModelOutput

    from pipelines.tasks.base import LabelledTask


@dataclass(frozen=True)
class OptionPredictions(LogitPredictions):
    """The best option of each question: `logits` (questions, options), `rows` are ChoiceRows, labels the right
    options' numbers."""

    def outputs(self, task: Task) -> int:
        return int(self.logits.shape[1])

    def scored_examples(self, task: Task) -> ScoredExamples:
        rows: Any = self.rows
        labels = np.asarray(self.labels)

        def named(numbers: NDArray[np.integer]) -> list[str]:
            return [f"{LETTERS[number]}: {row[number]}" for number, row in zip(numbers, rows.options, strict=True)]

        return scored_decisions(self.logits, labels, named(labels), named(self.logits.argmax(axis=1)))

    def columns(self, task: Task) -> Columns:
        rows: Any = self.rows
        letters = list(LETTERS[: self.logits.shape[1]])
        return self.inputs() | {"options": [list(row) for row in rows.options]} | decision_columns(self.logits, letters)

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        rows: Any = self.rows
        options, letters = list(rows.options[place]), LETTERS[: self.logits.shape[1]]
        return (bars(letters, softmax(self.logits[place]).tolist(), "Probability of each option", options),)

    def doubt(self, task: Task) -> str | None:
        if not self.labels_differ:
            return None
        return constant_prediction(self.benchmark, self.split, self.logits, tuple(LETTERS))

    def table(self) -> pa.Table:
        import pyarrow as pa

        rows: Any = self.rows
        labels = self.labels
        return pa.table(
            {
                **self.key_columns(),
                "text": pa.array(list(self.rows.texts), pa.string()),
                "options": pa.array([list(row) for row in rows.options], pa.list_(pa.string())),
                "label": pa.nulls(len(self.rows), pa.int64()) if labels is None else pa.array(labels.astype(np.int64)),
                "prediction": pa.array(self.logits.argmax(axis=1).astype(np.int64)),
                "logits": pa.array(list(self.logits.astype(np.float32)), pa.list_(pa.float32())),
            }
        )


def score_options(task: Task) -> Score:
    """The task's accuracy as a function of logits (questions, options) and the numbers of the right options
    (questions,)."""
    name = task.name

    def of(logits: object, labels: object) -> dict[str, float]:
        logits, labels = np.asarray(logits), np.asarray(labels)
        if logits.ndim != 2:
            raise ModelError(
                f"'{name}' needs a logit for each option, but the model gives {logits.shape}; evaluate a "
                "multiple choice model"
            )
        logits = checked_logits(logits, logits.shape[1], name)
        if len(labels) != len(logits):
            raise DataError(f"'{name}' has {len(logits)} predictions but {len(labels)} labels; they must be as many")
        if len(labels) == 0:
            raise DataError(f"'{name}' has no example to score; choose a split with rows, or raise max_eval_samples")
        wrong = (labels < 0) | (labels >= logits.shape[1])
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"'{name}' has the answer {labels[row].item()} in row {row}, but the options are 0 … "
                f"{logits.shape[1] - 1}"
            )
        return Accuracy().compute(logits.argmax(axis=1), labels)

    return of


class MultipleChoiceEvaluation(TaskEvaluation):
    """A logit for each option of each question."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        import numpy as np

        from pipelines.models.predict import forward
        from pipelines.tasks.multiple_choice.training import collate_choices, encode_choices

        length, name = request.length(), request.choice.name
        predicted, shared = [], {}
        for suffix, split, split_rows in request.splits():
            rows: Any = split_rows
            examples = encode_choices(request.tokenizer, rows, length)
            running = request.running(split)
            if (by_article := _by_article(request, rows, examples, running)) is not None:
                logits, shared[split] = by_article
                predicted.append(OptionPredictions(name, split, suffix, rows, np.stack(logits)))
                continue
            running["batch_size"] = max(
                1, running["batch_size"] // max(rows.choices, 1)
            )  # as many texts as of other tasks
            logits = forward(
                request.model,
                examples,
                partial(collate_choices, request.tokenizer),
                _logits,
                head_alone=True,
                **running,
            )
            predicted.append(OptionPredictions(name, split, suffix, rows, np.stack(logits)))
        return Predictions(predicted, length, details={"articles_read_once": shared} if shared else {})

    def score(self, task: Task) -> Score:

        return score_options(task)

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        choices: Any = task
        if len(choices.option_columns) > 1:
            return super().form(task)
        *texts, options = super().form(task)
        return (*texts, field_of(options.name, "One option a line.", control="lines"))

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str | list[str]]]:
        choices: Any = task
        contexts = [] if choices.context is None else ["The bakery opens at six. On Sundays it is closed all day."]
        question = "When can bread be bought there?" if contexts else "She put the kettle on the stove, and"
        blank = f"The bakery is closed on {choices.blank} ." if choices.blank else question
        options = (
            ["Sundays", "Mondays", "every morning", "holidays"]
            if choices.blank
            else ["On Sunday at noon", "On Monday at seven", "At any time", "Never"]
            if contexts
            else ["waited for the water to boil.", "painted the fence.", "fell into the lake.", "read the train."]
        )
        many = len(choices.option_columns)
        listed: list[str | list[str]] = [options] if many == 1 else [*(options * many)[:many]]
        return [(*contexts, blank, *listed)]

    def unread(self, tokenizer: Any, rows: Any, length: int) -> str | None:
        together = [[f"{text} {option}" for option in row] for text, row in zip(rows.texts, rows.options, strict=True)]
        counts = [max(map(len, tokenizer(row, verbose=False)["input_ids"])) for row in together]
        return cut_sentence(counts, length)


def _by_article(
    request: EvaluationRequest, rows: Any, examples: Any, running: Any
) -> tuple[list[Any], dict[str, int]] | None:
    """(the logits, how many tokens were read) where what the questions of an article share needs to be read once
    only, else None."""
    from pipelines.data.completions import padding_token
    from pipelines.tasks.multiple_choice.shared_articles import articles_of, can_share, pays, read_articles

    if len(rows) == 0 or examples.token_type_ids is not None or not can_share(request.model):
        return None
    articles = articles_of(rows.texts, examples)
    if not pays(articles, request.model, **running):
        return None
    logits, shares = read_articles(request.model, articles, rows.choices, padding_token(request.tokenizer), **running)
    whole = sum(len(sequence) for question in examples.input_ids for sequence in question)
    return logits, {
        "articles": len(articles),
        "tokens": sum(each.tokens for each in articles) if shares else whole,
        "tokens_of_all": whole,
    }


def _logits(outputs: ModelOutput, inputs: Any) -> Any:
    """(questions, options). Raises ModelError for a model that scores something else."""
    from pipelines.core.errors import ModelError

    logits = outputs.logits.float().cpu().numpy()
    wanted = tuple(inputs["input_ids"].shape[:2])
    if logits.shape != wanted:
        raise ModelError(
            f"the model gives outputs of shape {logits.shape}, where a multiple choice head gives {wanted}; "
            "evaluate one"
        )
    return logits
