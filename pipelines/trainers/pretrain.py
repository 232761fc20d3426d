"""Pretraining: learn from text alone, by an objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.costs import BYTES_PER_TOKEN
from pipelines.core.errors import IncompatibleError
from pipelines.core.model_types import takes_masks, usable_positions
from pipelines.core.recipe import Stage
from pipelines.core.registry import OBJECTIVES, TUNERS
from pipelines.core.training_arguments import TrainingArguments
from pipelines.data.references import DatasetReference
from pipelines.data.row_counts import text_bytes
from pipelines.models import opening
from pipelines.trainers import tuning

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.core.recipe import Recipe
    from pipelines.data.packing import Blocks
    from pipelines.data.sentences import Spans
    from pipelines.trainers.trainer import Collate


class Pretrain(Stage):
    """Train on packed text, without labels."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: pretrain, datasets: [{path: builtin/python-docs}]}",
        "{stage: pretrain, id: more, from: model, seed: 3, objective: {name: masked_lm, probability: 0.2}, "
        "datasets: [{path: builtin/python-docs}], block_size: 64, tuner: {name: lora, r: 2}, "
        "arguments: {max_steps: 5, learning_rate: 1e-3}}",
    )
    stage: Literal["pretrain"] = "pretrain"
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = "masked_lm"
    """What the model is asked to do: `masked_lm`, or a mapping with its settings."""
    datasets: tuple[DatasetReference, ...] = Field(min_length=1)
    """Text to learn from, one after another."""
    block_size: int = Field(128, ge=8, le=131072)
    """Tokens of each packed block, special tokens included."""
    cross_document_attention: bool = True
    """Whether tokens see those of other documents that are packed into their block."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of each data set."""
    arguments: TrainingArguments = TrainingArguments()
    """transformers TrainingArguments by name, and `global_batch_size`."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        shape = recipe.model.architecture
        longest = architecture_fields.resolve(shape).get("max_position_embeddings") if shape else None
        if isinstance(longest, int) and longest < self.block_size:
            yield ("block_size",), f"is {self.block_size}, but the model has max_position_embeddings {longest}"
        if self.arguments.eval_strategy != "no":
            yield ("arguments", "eval_strategy"), "is not offered here: pretraining holds no rows back; leave it out"
        objective = self.objective
        if objective.pairs:
            yield (
                ("objective",),
                f"is {objective.name}, which learns from pairs and not from text; use a supervised stage with "
                "a task of kind seq2seq",
            )
            return
        if sentence := objective.too_long(self.block_size):
            yield ("block_size",), f"is {self.block_size}, but {objective.name} {sentence}"
        if self.tuner.adapts and objective.two_models:
            yield (
                ("tuner",),
                f"is {self.tuner.name}, but {objective.name} trains a second model beside the one that is "
                "kept; use full",
            )
        if not self.cross_document_attention and not objective.separates:
            yield (
                ("cross_document_attention",),
                f"is false, but {objective.name} cannot keep documents apart; leave it out",
            )
        if shape:
            yield from self._unfit(architecture_fields.resolve(shape), architecture_fields.heads(shape))
        yield from tuning.issues(self, recipe, objective.head.kind, self.block_size)

    def _unfit(self, shape: Mapping[str, Any], heads: tuple[str, ...] | None = None) -> Iterator[ConfigIssue]:
        """Why a model of this resolved architecture cannot do the stage. `heads` are those it can have, where known."""
        objective = self.objective
        if sentence := objective.misfit(shape):
            yield ("objective",), f"is {objective.name}, which {sentence}"
        elif heads is not None and objective.head.kind not in (*heads, "pretraining"):
            yield (
                ("objective",),
                f"is {objective.name}, whose head this architecture does not have; it has {', '.join(heads)}",
            )
        elif not self.cross_document_attention and objective.separates and (sentence := takes_masks(shape)):
            yield ("cross_document_attention",), f"is false, which {sentence}"

    def content(self, recipe: Recipe) -> dict[str, str]:
        return {  # the column is named: the tokenizer and the packed text are found again by this
            f"datasets[{position}].{reference.text}": reference.content()
            for position, reference in enumerate(self.datasets)
        }

    def texts(self) -> Iterator[str]:
        """Every document, in the order of the recipe."""
        return chain.from_iterable(reference.rows(self.max_train_samples) for reference in self.datasets)

    def special_tokens(self) -> tuple[str, ...]:
        tokens: tuple[str, ...] = self.objective.special_tokens()
        return tokens

    def cost(self, planning: Planning) -> StagePlan:
        notes, objective = [*planning.notes], self.objective
        examples = None
        if not planning.steps_given(self):
            sizes = [text_bytes(reference, self.max_train_samples) for reference in self.datasets]
            if None in sizes or objective.pairs:
                notes.append("how much text there is will be known when the run starts, or set arguments.max_steps")
            else:
                taken = max(1, objective.raw_length(self.block_size))
                examples = sum(size for size in sizes if size is not None) // BYTES_PER_TOKEN // taken
                notes.append(f"about {examples:,} blocks of text, taking a token for {BYTES_PER_TOKEN} bytes")
        if objective.two_models:
            notes.append("the generator that is trained beside the model is not counted")
        return planning.training(self, objective.head, objective.example(self.block_size), examples, notes)

    def head_left(self) -> Head:
        head: Head = self.objective.head
        return head

    def run(self, context: Context) -> None:
        """Pack, train, save."""
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.trainer import fit

        tokenizer, objective = context.open_tokenizer(), self.objective
        model = tuning.opened(self, context, objective.head)
        self._refuse(model.config)
        collate = self.collator(tokenizer, context.seed, model.config)
        examples = self._examples(context, tokenizer)
        tuner, model = tuning.adapted(
            self, context, objective.prepare(model, tokenizer, partial(_another, context, model))
        )
        model, metrics = fit(
            context,
            model,
            tokenizer,
            examples,
            collate=collate,
            loss=objective.loss,
            label_names=objective.label_names,
            arguments=self.arguments,
            marked=True,
            tuner=tuner,
        )
        metrics["train_tokens"] = metrics["train_steps"] and round(metrics["epoch"] * self._tokens(examples))
        save_stage(context, objective.finish(model), tokenizer, objective.head, metrics, tuner)

    def _refuse(self, config: PreTrainedConfig) -> None:
        """Raise Misfit when the open model cannot do the stage, for a checkpoint shows its shape only now."""
        longest = usable_positions(config)
        if longest is not None and longest < self.block_size:
            raise IncompatibleError(
                f"block_size is {self.block_size}, but the model has positions for {longest} tokens; lower it"
            )
        for place, sentence in self._unfit(config.to_dict()):
            raise IncompatibleError(f"{place[0]} {sentence}")

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig) -> Collate:
        """The objective's own, which keeps documents apart where the stage does; evaluation asks with it too."""
        collate = self.objective.collate(tokenizer, seed, config)
        if self.cross_document_attention:
            return collate
        from pipelines.data.packing import end_of_text
        from pipelines.objectives.attention_masks import SeparateDocuments

        end = end_of_text(tokenizer) if self.objective.layout == "stream" else tokenizer.sep_token_id
        return SeparateDocuments(collate, end, self.objective.causal)

    def _examples(self, context: Context, tokenizer: PreTrainedTokenizerBase) -> Blocks | Spans:
        """The text as the objective wants it, prepared by the main process and mapped by all."""
        from pipelines.data.packing import prepared_key
        from pipelines.data.sentences import lay_out

        layout, length = self.objective.layout, self.objective.raw_length(self.block_size)
        key = prepared_key(tokenizer, self.content(context.recipe), self.max_train_samples)
        if context.world.is_main:
            context.events.emit("progress", what="packing text")
            lay_out(layout, tokenizer, self.texts(), length, context.cache, key)
        context.barrier()
        return lay_out(layout, tokenizer, self.texts(), length, context.cache, key)

    def _tokens(self, examples: Blocks | Spans) -> int:
        """Tokens of an epoch, special ones included."""
        added: int = self.block_size - self.objective.raw_length(self.block_size)
        if self.objective.layout == "sentences":
            return examples.tokens + added * len(examples)
        return len(examples) * self.block_size


def _another(context: Context, model: PreTrainedModel, head: Head, **overrides: object) -> PreTrainedModel:
    """A further model from scratch with `head`: the recipe's architecture, or the checkpoint's, with other words."""
    shape = context.recipe.model.architecture
    words = (
        architecture_fields.resolve(shape)
        if shape
        else {"model_type": model.config.model_type, **model.config.to_diff_dict()}
    )
    words = words | {"vocab_size": model.config.vocab_size} | overrides  # a preset names its own vocabulary
    return opening.build(words, head, context.open_tokenizer(), context.seed)
