"""Supervised fine-tuning: learn a labelled task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Found, Pick
from pipelines.data.tasks import TaskField, resolve
from pipelines.errors import DataError
from pipelines.fields import architectures
from pipelines.fields.positions import usable_positions
from pipelines.recipe import Stage
from pipelines.registry import OBJECTIVES, TUNERS
from pipelines.trainers import auxiliary_lm, pairs
from pipelines.trainers.arguments import checked, in_todays_names

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe

SELECTION_SHARE = 0.1
SELECTION_MOST = 2000
"""Model selection uses a tenth of train, at most 2,000 rows: the reported split is read once, for the report."""


class Supervised(Stage):
    """Fine-tune on a task's training rows."""

    stage: Literal["supervised"] = "supervised"
    task: TaskField
    """A named task such as `glue/mrpc`, or an inline one that describes your own files."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    max_length: int = Field(128, ge=4, le=131072)
    """Tokens after which an example is cut."""
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = Field(None, validate_default=False)
    """For tasks of the kind `seq2seq`: `seq2seq` (the default) or `mask_predict`, or a mapping with its settings."""
    max_source_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a source is cut. Default: `max_length`."""
    max_target_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a target is cut. Default: `max_length`."""
    auxiliary_lm: float | None = Field(None, gt=0, le=100)
    """The weight of naming the next tokens of the texts beside the task, for decoders; 0.5 in the paper on GPT."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of train."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Only the first of the rows set aside for model selection."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and `load_best_model_at_end`."""
    arguments: Annotated[dict[str, Any], BeforeValidator(checked)] = Field(default_factory=dict)
    """transformers TrainingArguments by name, and `global_batch_size`."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        shape = recipe.model.architecture
        longest = architectures.resolve(shape).get("max_position_embeddings") if shape else None
        own_lengths = self.max_source_length is not None and self.max_target_length is not None
        if isinstance(longest, int) and longest < self.max_length and not own_lengths:
            yield ("max_length",), f"is {self.max_length}, but the model has max_position_embeddings {longest}"
        words = in_todays_names(self.arguments)
        if self.early_stopping_patience is not None and not words.get("load_best_model_at_end"):
            yield (
                ("early_stopping_patience",),
                "needs arguments.eval_strategy and arguments.load_best_model_at_end: true",
            )
        if words.get("load_best_model_at_end") and words.get("eval_strategy", "no") == "no":
            yield ("arguments", "load_best_model_at_end"), "needs arguments.eval_strategy: epoch or steps"
        if self.task == "glue/ax":
            yield ("task",), "glue/ax has no training rows; train glue/mnli and evaluate on glue/ax"
        if self.auxiliary_lm is not None and shape and (sentence := auxiliary_lm.misfit(architectures.resolve(shape))):
            yield ("auxiliary_lm",), sentence
        elif self.auxiliary_lm is not None and pairs.is_pairs(self):
            yield ("auxiliary_lm",), "is for tasks with one answer a text, but this task's answers are texts; leave it out"
        yield from pairs.mistakes(self, recipe)

    def content(self, recipe: Recipe) -> dict[str, str]:
        task = resolve(self.task, self.id)
        # The columns are named: a tokenizer that learnt from others is another one.
        columns = (*task.columns, task.label) if task.kind == pairs.KIND else task.columns
        return {f"train.{'+'.join(columns)}": task.content()["train"]}

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        rows = resolve(self.task, self.id).rows("train", self.max_train_samples)
        return chain(rows.texts, rows.pairs or (), (label for label in rows.labels or () if isinstance(label, str)))

    def run(self, context: Context) -> None:
        """Encode, train, save."""
        if pairs.is_pairs(self):
            pairs.run(self, context)
            return
        from pipelines.data.encoding import collate, encode
        from pipelines.trainers.loop import LABELS, fit
        from pipelines.trainers.losses import IGNORED, classification_loss, regression_loss
        from pipelines.trainers.saving import save_stage

        task = resolve(self.task, self.id)
        rows = task.rows("train", self.max_train_samples)
        if len(rows) == 0:
            raise DataError(f"task '{task.name}' has no training rows")
        if not task.head.labels and any(label == IGNORED for label in rows.labels or ()):
            raise DataError(f"task '{task.name}' has a label of exactly {IGNORED}, which stands for 'no label'; shift the labels")
        tokenizer = context.open_tokenizer()
        head = task.head
        model = context.open_model(head, keep_base=context.folder / "base" if self.tuner.adapts else None)
        longest = usable_positions(model.config)
        limit = self.max_length if longest is None else min(self.max_length, longest)
        examples = encode(tokenizer, rows, limit)
        if context.world.is_main and examples.truncated:
            share = examples.truncated / len(examples)
            context.events.emit(
                "warning" if share > 0.05 else "progress",
                message=f"{examples.truncated} of {len(examples)} rows are cut to {limit} tokens ({share:.1%}); max_length sets the limit",
            )
        words, selection = in_todays_names(self.arguments), None
        if words.get("eval_strategy", "no") != "no":
            if len(examples) < 2:
                raise DataError(f"task '{task.name}' has one training row, too few to set one aside for eval_strategy")
            examples, selection = set_aside(examples, context.seed, self.max_eval_samples)
        together, loss, parts = partial(collate, tokenizer), classification_loss if head.labels else regression_loss, LABELS
        if self.auxiliary_lm is not None:
            auxiliary_lm.attach(model, context.open_model)
            together, loss = auxiliary_lm.with_next_tokens(together), auxiliary_lm.with_language_loss(loss)
            parts = {"labels": 1.0, "lm_labels": self.auxiliary_lm}
        model = self.tuner.apply(model)
        model, metrics = fit(
            context, model, tokenizer, examples, collate=together, loss=loss, label_names=parts,
            arguments=self.arguments if selection is None or words.get("metric_for_best_model") else {"metric_for_best_model": task.metrics[0]} | self.arguments,
            lengths=None if words.get("train_sampling_strategy") == "random" else examples.lengths,
            selection=selection,
            score=context.score(task) if selection else None,
            early_stopping_patience=self.early_stopping_patience,
        )  # fmt: skip
        if self.auxiliary_lm is not None:
            auxiliary_lm.detach(model)
        save_stage(context, model, tokenizer, head, metrics)


def set_aside(examples: Any, seed: int, most: int | None) -> tuple[Any, Any]:
    """(what is trained on, what models are selected by), drawn by the seed."""
    import numpy as np

    count = min(max(1, round(len(examples) * SELECTION_SHARE)), SELECTION_MOST)
    order = np.random.default_rng([seed, 0x5E1EC7]).permutation(len(examples))
    held_out = np.sort(order[:count])[:most]
    return examples.select(np.sort(order[count:])), examples.select(held_out)
