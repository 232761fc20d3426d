"""Supervised fine-tuning: learn a labelled task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.architectures.arithmetic import WORD_HEADS
from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.recipe import Stage
from pipelines.core.registry import TASK_KINDS, TUNERS
from pipelines.core.training_arguments import TrainingArguments
from pipelines.data import stage_files
from pipelines.tasks.known import head_without_rows
from pipelines.tasks.subject import Subject
from pipelines.trainers import input_formats, model_selection, tuning
from pipelines.trainers.input_formats import InputFormat

if TYPE_CHECKING:
    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.core.recipe import Recipe


class Supervised(Subject, Stage):
    """Fine-tune on a task's training rows."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: supervised, task: glue/rte}",
        "{stage: supervised, id: cola, task: glue/cola, tuner: lora, max_length: 64, max_train_samples: 9, "
        "early_stopping_patience: 2, arguments: {eval_strategy: epoch, load_best_model_at_end: true, "
        "global_batch_size: 32}}",
        "{stage: supervised, task: multi30k/en-fr}",
        "{stage: supervised, id: copy, task: {kind: seq2seq, source: text, target: source, "
        "train: builtin/python-docs}, objective: {name: mask_predict, label_smoothing: 0.2}, "
        "max_source_length: 64, max_target_length: 16}",
    )
    stage: Literal["supervised"] = "supervised"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    input_format: InputFormat | None = None
    """For decoders: `gpt` puts learnt tokens before, between and behind the texts, as the paper on GPT does;
    `gpt_both_orders` reads pairs the other way round as well. Default: what the tokenizer puts around texts."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and
    `load_best_model_at_end`."""
    arguments: TrainingArguments = TrainingArguments()
    """transformers TrainingArguments by name, and `global_batch_size`."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from self.learning_mistakes(self.id, recipe)
        yield from stage_files.mistakes(self.task, self, recipe)
        yield from input_formats.mistakes(self, recipe)
        yield from model_selection.issues(self.early_stopping_patience, self.arguments)
        yield from tuning.issues(self, recipe, self.learnt_as().head_kind, self.max_length)

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.training_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The model's stage, those whose adapters the tuner builds on, and the one that wrote the training rows."""
        written = stage_files.stage_of(self.task)
        return tuple(
            dict.fromkeys((*super().reads(recipe), *self.tuner.stages, *(() if written is None else (written,))))
        )

    def subjects(self) -> Mapping[str, Any]:
        return {self.id: self}

    def modules(self, recipe: Recipe) -> set[str]:
        return {TASK_KINDS.module("seq2seq" if self.as_text else self.resolved(self.id).kind)}

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.training_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return (*self.needed_tokens(), *input_formats.tokens_of(self.input_format))

    def cost(self, planning: Planning) -> StagePlan:
        notes = [*planning.notes]
        head, example, rows = self.planned(self.resolved(self.id), notes)
        rows = planning.rows_to_learn(self, rows, notes)
        if self.auxiliary_lm is not None:
            notes.append("the scores of the auxiliary language model are not counted")
        return planning.training(self, head, example, rows, notes)

    def head_left(self) -> Head:
        return replace(head_without_rows(self.resolved(self.id), []), pooling=self.pooling)

    def run(self, context: Context) -> None:
        """Encode, train, save."""
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.trainer import fit

        task, tokenizer = self.resolved(self.id), context.open_tokenizer()
        head = self.learnt_as().training_head(self, task)
        model = tuning.opened(self, context, head)
        input_formats.prepare(model, tokenizer, self.input_format, context.seed)
        lesson = self.training().prepare(self, task, context, model, tokenizer, tuning.room_for_text(self, model))
        examples, selection, overrides = model_selection.divided(
            lesson.examples, self.arguments, lesson.metric, context.seed, self.max_eval_samples, f"task '{task.name}'"
        )
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = fit(
            context,
            model,
            tokenizer,
            examples,
            collate=lesson.collate,
            loss=lesson.loss,
            label_names=lesson.label_names,
            arguments=self.arguments,
            overrides=overrides,
            lengths=None if self.arguments.train_sampling_strategy == "random" else examples.lengths,
            marked=lesson.marked,
            selection=selection,
            score=lesson.score if selection is not None else None,
            early_stopping_patience=self.early_stopping_patience,
            meter=lesson.meter,
            tuner=tuner,
            only_named_rows=self.auxiliary_lm is None,
            frozen_once=self.auxiliary_lm is None,
            same_steps=head.kind not in WORD_HEADS and self.auxiliary_lm is None,
        )
        lesson.finish(model)
        save_stage(context, model, tokenizer, head, metrics, tuner)
