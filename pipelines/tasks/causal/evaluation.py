"""Evaluating a decoder on answers: how likely it finds the right ones, and what it writes itself.

The bits of an answer include those of the end of the text behind it: they are what it costs to say it, and that it is
over. Over its bytes they compare whatever the tokenizer; over its tokens, as perplexity, they are what training
minimises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Score, Task
from pipelines.core.presentation import FormField, Part, Writing, Writings, field_of
from pipelines.core.recipe import START, trained_by
from pipelines.data import chat_templates
from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import CompletionCollator, encode_completions, padding_token
from pipelines.metrics.perplexity import Tally, completion_likelihood
from pipelines.metrics.statistics import RESAMPLES, corpus_intervals
from pipelines.models.predict import InferenceOptions, answers
from pipelines.tasks.evaluation import (
    EvaluationRequest,
    Predictions,
    TaskEvaluation,
)
from pipelines.tasks.predictions import ALL, Intervals, Members, SplitPredictions, constant_text
from pipelines.tasks.scored_examples import Columns, ScoredExamples, scored_texts
from pipelines.tasks.scoring import graded, score_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.tasks.base import LabelledTask

MOST_LOGITS = 2**26
"""Numbers of a batch's output, so that long answers and large vocabularies fit into memory, also of models whose logits
cannot be had of the answers alone."""


def likelihoods(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    max_length: int,
    **running: Unpack[InferenceOptions],
) -> Tally:
    """Bits, tokens, right tokens and bytes of the answers of each row that has any within `max_length` tokens, on every
    process. fp32. Raises ModelError where the model gives no likelihood."""
    import torch

    from pipelines.models.log_probabilities import distributions_of, log_probabilities_of

    examples = encode_completions(tokenizer, dialogues, range(len(dialogues)), max_length)
    together = CompletionCollator(padding_token(tokenizer))
    lengths = examples.lengths.tolist()
    fitting = MOST_LOGITS // (max(lengths, default=1) * model.config.get_text_config().vocab_size)
    running["batch_size"] = max(1, min(running.get("batch_size", 32), fitting))

    def answer(positions: list[int], device: Any) -> list[tuple[float, float, float]]:
        """Bits, tokens and right tokens of each."""
        inputs = {name: value.to(device) for name, value in together([examples[at] for at in positions]).items()}
        labels = inputs.pop("labels")
        wanted = labels != IGNORED
        _, said = distributions_of(model, inputs, wanted)
        target = labels[wanted]
        sums = torch.zeros(len(positions), 3, dtype=torch.float64)
        rows = wanted.nonzero()[:, 0].cpu()
        for part, logits in said.in_chunks():  # (some, vocabulary)
            bits = -log_probabilities_of(logits, target[part]).cpu().double() / np.log(2.0)
            right = (logits.argmax(-1) == target[part]).cpu().double()
            sums.index_add_(0, rows[part], torch.stack([bits, torch.ones_like(bits), right], 1))
        return [tuple(each) for each in sums.tolist()]

    told = answers(model, lengths, answer, **running)
    bits, tokens, right = np.asarray(told, dtype=np.float64).reshape(-1, 3).T
    if not np.isfinite(bits).all():
        raise ModelError(
            "the model gives NaN or infinity for answers: its training diverged, so lower its learning rate"
        )
    columns = {"bits": bits, "tokens": tokens, "right": right, "bytes": examples.sizes.astype(np.float64)}
    return Tally.of(np.asarray(examples.index), columns)


@dataclass(frozen=True)
class ScoredCompletions:
    """What is scored of a split."""

    texts: NDArray[Any] | None
    """What the model wrote (examples,); None where nothing was asked."""
    tally: Tally
    """Bits, tokens and bytes of the right answers, by row."""


@dataclass(frozen=True)
class CompletionPredictions(SplitPredictions):
    """Answers in words, and the likelihood of the right ones."""

    texts: NDArray[Any] | None
    tally: Tally

    @property
    def answers(self) -> ScoredCompletions:
        """Texts and likelihood."""
        return ScoredCompletions(self.texts, self.tally)

    @property
    def labels(self) -> NDArray[Any]:
        """The right answers (examples,)."""
        return np.asarray(self.rows.labels, dtype=object)

    def part(self, members: Members) -> tuple[Any, Any] | None:
        """The written texts: the likelihood is that of the whole split."""
        return None if self.texts is None else (self.texts[members], self.labels[members])

    def intervals(
        self, task: Task, score: Score, seed: int, members: Members | None = None, resamples: int = RESAMPLES
    ) -> Intervals:
        part = self.part(ALL if members is None else members)
        ranges = {} if members is not None else self.tally.intervals(completion_likelihood, seed)
        if part is None:
            return ranges
        texts, references = (graded(task, column) for column in part)
        return ranges | corpus_intervals(task.metrics, texts, references, seed, resamples)

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        text = "" if self.texts is None else str(self.texts[place])
        return (Writings(writings=(Writing(title="Written", text=text),)),)

    def scored_examples(self, task: Task) -> ScoredExamples | None:
        if self.texts is None or not task.metrics:
            return None
        texts, references = [str(each) for each in self.texts], [str(each) for each in self.labels]
        return scored_texts(texts, references, graded(task, texts), graded(task, references), task.metrics)

    def columns(self, task: Task) -> Columns:
        return self.inputs() | {"prediction": [] if self.texts is None else [str(text) for text in self.texts]}

    def doubt(self, task: Task) -> str | None:
        if self.texts is None or not self.labels_differ:
            return None
        return constant_text(self.benchmark, self.split, self.texts)

    def table(self) -> pa.Table:
        """As for other written texts, with bits, tokens and right tokens of the right answer; no rows where nothing was
        written."""
        import pyarrow as pa

        measured = {}
        for name in ("bits", "tokens", "right"):
            measured[f"completion_{name}"] = column = np.full(len(self.rows), np.nan)
            column[self.tally.documents] = self.tally.columns[name]
        texts = [] if self.texts is None else list(self.texts)
        table = pa.table(
            {
                **self.key_columns(),
                "source": pa.array(list(self.rows.texts), pa.string()),
                "reference": pa.array(list(self.labels), pa.string()),
                "hypothesis": pa.array(texts or [None] * len(self.rows), pa.string()),
                **{name: pa.array(column, pa.float64()) for name, column in measured.items()},
            }
        )
        return table if texts else table.slice(0, 0)


def score_completions(task: Task) -> Score:
    """The task's metrics of written texts, and `completion_likelihood` where likelihoods are given."""
    return partial(_score, task)


def _score(task: Task, answers: Any, references: Any) -> dict[str, float]:
    texts = answers.texts if isinstance(answers, ScoredCompletions) else answers
    scores: dict[str, float] = {}
    if texts is not None and task.metrics:
        scores |= score_texts(task)(texts, references)
    return scores | (answers.tally.figures(completion_likelihood) if isinstance(answers, ScoredCompletions) else {})


class CausalEvaluation(TaskEvaluation):
    """Perplexity and bits per byte of the answers, and a written answer to each prompt where the rows have prompts."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        from pipelines.models.generate import continue_prompts, how

        template = template_of(request)
        tokenizer = (
            request.tokenizer if request.choice.model == START else request.context.open_tokenizer(request.choice.model)
        )
        length, name = request.length(), request.choice.name
        predicted, template_used, written = [], None, None
        for suffix, split, rows in request.splits():
            given: Any = rows
            dialogues = [each.in_turns() for each in given.dialogues] if template else list(given.dialogues)
            if any(each.templated for each in dialogues):
                template_used = chat_templates.adopt(tokenizer, template)
            tally = likelihoods(request.model, tokenizer, dialogues, length, **request.running(split))
            asks = all(len(each.messages) > 1 for each in dialogues)
            texts = None
            if asks:
                settings = how(request.model, tokenizer, request.stage.generation)  # the template ends answers too
                written = settings.words()
                running = request.running(f"{split}, writing")
                texts = continue_prompts(request.model, tokenizer, dialogues, settings, **running)
            predicted.append(CompletionPredictions(name, split, suffix, rows, texts, tally))
        details = {"chat_template": template_used, "train_on": "completions"}
        return Predictions(
            predicted,
            length,
            generation=written,
            details=details,
        )

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        return (field_of("prompt"),)

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str]]:
        return [("Name three things that can be seen in the sky at night.",), ("How do I make a cup of tea?",)]

    def score(self, task: Task) -> Score:

        return score_completions(task)


def template_of(request: EvaluationRequest) -> str | None:
    """The chat template that the stage names, else that of the stage that trained the model; None leaves it to the
    tokenizer."""
    return request.stage.chat_template or getattr(trainer_of(request), "chat_template", None)


def trainer_of(request: EvaluationRequest) -> Any:
    """What the model learnt, as its stage says it; None for a model that was trained on no task."""
    return trained_by(request.context.recipe.stages).get(request.choice.model)
