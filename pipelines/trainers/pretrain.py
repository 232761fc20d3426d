"""Pretraining: learn from text alone, by an objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Found, Pick
from pipelines.data.references import DatasetReference
from pipelines.errors import ModelError
from pipelines.fields import architectures
from pipelines.fields.positions import usable_positions
from pipelines.recipe import Stage
from pipelines.registry import OBJECTIVES, TUNERS
from pipelines.trainers.arguments import checked, in_todays_names

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe


class Pretrain(Stage):
    """Train on packed blocks of text, without padding and without labels."""

    stage: Literal["pretrain"] = "pretrain"
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = "masked_lm"
    """What the model is asked to do: `masked_lm`, or a mapping with its settings."""
    datasets: tuple[DatasetReference, ...] = Field(min_length=1)
    """Text to learn from, one after another."""
    block_size: int = Field(128, ge=8, le=131072)
    """Tokens of each packed block, special tokens included."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of each data set."""
    arguments: Annotated[dict[str, Any], BeforeValidator(checked)] = Field(default_factory=dict)
    """transformers TrainingArguments by name, and `global_batch_size`."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        shape = recipe.model.architecture
        longest = architectures.resolve(shape).get("max_position_embeddings") if shape else None
        if isinstance(longest, int) and longest < self.block_size:
            yield ("block_size",), f"is {self.block_size}, but the model has max_position_embeddings {longest}"
        if in_todays_names(self.arguments).get("eval_strategy", "no") != "no":
            yield ("arguments", "eval_strategy"), "is not offered here: pretraining holds no rows back; leave it out"
        if shape and self.objective.head.kind not in (known := architectures.heads(shape)):
            yield ("objective",), f"is {self.objective.name}, whose head this architecture does not have; it has {', '.join(known)}"

    def content(self, recipe: Recipe) -> dict[str, str]:
        return {  # the column is named: the tokenizer and the packed text are found again by this
            f"datasets[{position}].{reference.text}": reference.content()
            for position, reference in enumerate(self.datasets)
        }

    def texts(self) -> Iterator[str]:
        """Every document, in the order of the recipe."""
        return chain.from_iterable(islice(reference.rows(), self.max_train_samples) for reference in self.datasets)

    def run(self, context: Context) -> None:
        """Pack, train, save."""
        from pipelines.data.packing import Blocks, pack
        from pipelines.trainers.loop import fit
        from pipelines.trainers.losses import masked_token_loss
        from pipelines.trainers.preparation import prepared_key
        from pipelines.trainers.saving import save_stage

        tokenizer = context.open_tokenizer()
        head = self.objective.head
        model = context.open_model(head, keep_base=context.folder / "base" if self.tuner.adapts else None)
        longest = usable_positions(model.config)
        if longest is not None and longest < self.block_size:
            raise ModelError(f"block_size is {self.block_size}, but the model has positions for {longest} tokens; lower it")
        key = prepared_key(tokenizer, self.content(context.recipe), self.block_size, self.max_train_samples)
        if context.world.is_main:
            context.events.emit("progress", what="packing text")
            pack(tokenizer, self.texts(), self.block_size, context.cache, key)
        context.barrier()
        blocks = Blocks(pack(tokenizer, self.texts(), self.block_size, context.cache, key))
        model = self.tuner.apply(model)
        model, metrics = fit(
            context, model, tokenizer, blocks,
            collate=self.objective.collate(tokenizer, context.seed), loss=masked_token_loss,
            arguments=self.arguments, marked=True,
        )  # fmt: skip
        metrics["train_tokens"] = metrics["train_steps"] and round(metrics["epoch"] * len(blocks)) * self.block_size
        save_stage(context, model, tokenizer, head, metrics)
