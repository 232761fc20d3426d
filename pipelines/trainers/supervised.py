"""Supervised fine-tuning: learn a labelled task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Found, Pick
from pipelines.errors import DataError
from pipelines.recipe import Stage
from pipelines.registry import LESSONS, TUNERS
from pipelines.trainers import tuning
from pipelines.trainers.arguments import checked, in_todays_names
from pipelines.trainers.subject import Subject

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe

SELECTION_SHARE = 0.1
SELECTION_MOST = 2000
"""Model selection uses a tenth of train, at most 2,000 rows: the reported split is read once, for the report."""


class Supervised(Subject, Stage):
    """Fine-tune on a task's training rows."""

    stage: Literal["supervised"] = "supervised"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and `load_best_model_at_end`."""
    arguments: Annotated[dict[str, Any], BeforeValidator(checked)] = Field(default_factory=dict)
    """transformers TrainingArguments by name, and `global_batch_size`."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        yield from self.learning_mistakes(self.id, recipe)
        words = in_todays_names(self.arguments)
        if self.early_stopping_patience is not None and not words.get("load_best_model_at_end"):
            yield (
                ("early_stopping_patience",),
                "needs arguments.eval_strategy and arguments.load_best_model_at_end: true",
            )
        if words.get("load_best_model_at_end") and words.get("eval_strategy", "no") == "no":
            yield ("arguments", "load_best_model_at_end"), "needs arguments.eval_strategy: epoch or steps"
        yield from tuning.mistakes(self, recipe, self.teacher().head_kind, self.max_length)

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.training_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The model's stage, and those whose adapters the tuner builds on."""
        return tuple(dict.fromkeys((*super().reads(recipe), *self.tuner.stages)))

    def subjects(self) -> Mapping[str, Any]:
        return {self.id: self}

    def modules(self) -> set[str]:
        return {LESSONS.module(self.resolved(self.id).kind)}

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.training_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return self.needed_tokens()

    def run(self, context: Context) -> None:
        """Encode, train, save."""
        from pipelines.trainers.loop import fit
        from pipelines.trainers.saving import save_stage

        task, teacher, tokenizer = self.resolved(self.id), self.teacher(), context.open_tokenizer()
        head = teacher.head(self, task)
        model = tuning.opened(self, context, head)
        lesson = teacher.prepare(self, task, context, model, tokenizer, tuning.room_for_text(self, model))
        examples, selection = lesson.examples, None
        words = in_todays_names(self.arguments)
        arguments = self.arguments
        if words.get("eval_strategy", "no") != "no":
            if len(examples) < 2:
                raise DataError(f"task '{task.name}' has one training row, too few to set one aside for eval_strategy")
            examples, selection = set_aside(examples, context.seed, self.max_eval_samples)
            if not words.get("metric_for_best_model"):
                arguments = {"metric_for_best_model": lesson.metric} | arguments
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = fit(
            context, model, tokenizer, examples,
            collate=lesson.collate, loss=lesson.loss, label_names=lesson.label_names, arguments=arguments,
            lengths=None if words.get("train_sampling_strategy") == "random" else examples.lengths,
            marked=lesson.marked, selection=selection, score=lesson.score if selection is not None else None,
            early_stopping_patience=self.early_stopping_patience, tuner=tuner,
        )  # fmt: skip
        lesson.finish(model)
        save_stage(context, model, tokenizer, head, metrics, tuner)


def set_aside(examples: Any, seed: int, most: int | None) -> tuple[Any, Any]:
    """(what is trained on, what models are selected by), rows drawn by the seed: all parts of a long text go together."""
    import numpy as np

    rows, row_of = np.unique(getattr(examples, "index", range(len(examples))), return_inverse=True)
    if len(rows) < 2:
        raise DataError("there is one training row, too few to set one aside for eval_strategy")
    count = min(max(1, round(len(rows) * SELECTION_SHARE)), SELECTION_MOST)
    order = np.random.default_rng([seed, 0x5E1EC7]).permutation(len(rows))
    held_out = np.flatnonzero(np.isin(row_of, np.sort(order[:count])[:most]))
    return examples.select(np.flatnonzero(np.isin(row_of, order[count:]))), examples.select(held_out)
