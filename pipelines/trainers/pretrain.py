"""Pretraining: learn from text alone, by an objective."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.costs import BYTES_PER_TOKEN
from pipelines.core.errors import IncompatibleError
from pipelines.core.files import read_json
from pipelines.core.model_types import loses_window, takes_masks, takes_sequences, usable_positions
from pipelines.core.recipe import Stage
from pipelines.core.registry import OBJECTIVES, TUNERS
from pipelines.core.training_arguments import TrainingArguments
from pipelines.data.references import DatasetReference, short_names
from pipelines.data.row_counts import text_bytes
from pipelines.models import opening
from pipelines.trainers import tuning

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.core.recipe import Recipe
    from pipelines.data.mixtures import ExampleSource, Mixture
    from pipelines.data.packing import Blocks
    from pipelines.data.sentences import Spans
    from pipelines.data.streaming import Readable
    from pipelines.data.text_reader import Position
    from pipelines.trainers.trainer import Collate

VOCABULARY_SAMPLES = 100_000
"""Documents of each data set that a tokenizer is trained on where they are streamed."""
STREAMS = "streams"
"""The folder of a stage where its streams keep what they are reading, while it trains."""
MEGABYTE = 10**6
PROGRESS_EVERY = 1.0
"""Seconds between two `progress` events while text is tokenised."""


class PretrainingDataset(DatasetReference):
    """Text to pretrain on, and how it is drawn from."""

    weight: float | None = Field(None, gt=0)
    """Its share of the examples, up to a factor that all data sets have in common. Without weights the data sets are
    one text, one after another. One that runs out is read again."""
    streaming: bool = False
    """Read, tokenise and pack it while it is learnt from, in constant memory, instead of before. Needs
    `arguments.max_steps`."""


class Pretrain(Stage):
    """Train on packed text, without labels."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: pretrain, datasets: [{path: builtin/python-docs}]}",
        "{stage: pretrain, id: more, from: model, seed: 3, objective: {name: masked_lm, probability: 0.2}, "
        "datasets: [{path: builtin/python-docs}], block_size: 64, tuner: {name: lora, r: 2}, "
        "arguments: {max_steps: 5, learning_rate: 1e-3}}",
        "{stage: pretrain, id: mixed, datasets: [{path: builtin/python-docs, weight: 3, streaming: true}, "
        "{path: builtin/python-docs, split: validation, weight: 1}], buffer_size: 500, dataset_num_proc: 1, "
        "arguments: {max_steps: 5}}",
    )
    stage: Literal["pretrain"] = "pretrain"
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = "masked_lm"
    """What the model is asked to do: `masked_lm`, or a mapping with its settings."""
    datasets: tuple[PretrainingDataset, ...] = Field(min_length=1)
    """Text to learn from: one after another, or each with its weight."""
    buffer_size: int = Field(10_000, ge=1)
    """Documents of a stream that are tokenised and shuffled together, fewer where they hold more than 32 million
    letters."""
    dataset_num_proc: int | None = Field(None, ge=1, le=1024)
    """Processes that tokenise; the result is the same for any number. Default: as many as the machine has cores, once
    there is more text than 8 million letters."""
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
        words, longest = recipe.model.words(), recipe.model.positions()
        if longest is not None and longest < self.block_size:
            yield ("block_size",), f"is {self.block_size}, but the model has max_position_embeddings {longest}"
        if self.arguments.eval_strategy != "no":
            yield ("arguments", "eval_strategy"), "is not offered here: pretraining holds no rows back; leave it out"
        yield from self._unfit_datasets()
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
        if words is not None:
            yield from self._unfit(words, recipe.model.heads())
        yield from tuning.issues(self, recipe, objective.head.kind, self.block_size)

    def _unfit_datasets(self) -> Iterator[ConfigIssue]:
        """Weights and streams that do not go together."""
        weighed = [each.weight is not None for each in self.datasets]
        streamed = [each.streaming for each in self.datasets]
        if any(weighed) and not all(weighed):
            place = weighed.index(False)
            yield (
                ("datasets", place, "weight"),
                "is missing, but other data sets have one; give every data set a weight, or none",
            )
        if not any(weighed) and any(streamed) and not all(streamed):
            yield (
                ("datasets", streamed.index(False), "streaming"),
                "is false, but it is true for others, and without weights all data sets are one text; set it for all, "
                "or give every data set a weight",
            )
        if any(streamed) and self.arguments.max_steps < 1:
            yield (
                ("arguments", "max_steps"),
                "is missing: the length of streamed text is not known before it is read; set how many steps are taken",
            )
        if "buffer_size" in self.model_fields_set and not any(streamed):
            yield ("buffer_size",), "belongs to data sets with streaming: true, and there is none; leave it out"

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

    def identity(self) -> dict[str, Any]:
        plain = super().identity()
        plain.pop("dataset_num_proc", None)
        return plain

    @property
    def streams(self) -> bool:
        """Whether text is streamed."""
        return any(each.streaming for each in self.datasets)

    def texts(self) -> Iterator[str]:
        """Every document, in the order of the recipe, read as it is asked for."""
        return self._texts(self.max_train_samples)

    def _texts(self, most: int | None) -> Iterator[str]:
        return chain.from_iterable(each.texts(most, streaming=each.streaming) for each in self.datasets)

    def vocabulary_rows(self) -> int | None:
        """How many documents of each data set a tokenizer is trained on; None is all."""
        counts = [VOCABULARY_SAMPLES] if self.streams else []
        return min([*counts, *([] if self.max_train_samples is None else [self.max_train_samples])], default=None)

    def vocabulary_texts(self, most: int | None) -> Iterator[str]:
        return self._texts(self.vocabulary_rows() if most is None else most)

    def learnt_rows(self, folder: Path | None) -> list[int | None]:
        """Of each source, how many documents from its first on the stage in `folder` learnt from; None is all."""
        drawn = {} if folder is None else read_json(folder / "metrics.json").get("datasets") or {}
        return [(drawn.get(name) or {}).get("documents") for name in self._sources()]

    def learnt_texts(self, folder: Path | None) -> Iterator[str]:
        """The documents that the stage in `folder` learnt from: of a stream, as far as it was read."""
        for references, rows in zip(self._sources().values(), self.learnt_rows(folder), strict=True):
            texts = (each.texts(self.max_train_samples, streaming=each.streaming) for each in references)
            yield from islice(chain.from_iterable(texts), rows)

    def _sources(self) -> dict[str, Sequence[PretrainingDataset]]:
        """By name: the data sets that examples are drawn from. Without weights they are one."""
        names = short_names(self.datasets)
        if self.datasets[0].weight is None:
            return {", ".join(names): self.datasets}
        unique = [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, start=1)]
        return {name: (each,) for name, each in zip(unique, self.datasets, strict=True)}

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
        words = planning.recipe.model.words()
        if words is not None and not self.cross_document_attention and objective.by_sequences:
            why = takes_sequences(words)
            notes += [] if why is None else [f"documents are kept apart by masks: finery_varlen {why}"]
        plan = planning.training(self, objective.head, objective.example(self.block_size), examples, notes)
        return replace(plan, notes=(*plan.notes, *self._planned_epochs(plan)))

    def _planned_epochs(self, plan: StagePlan) -> Iterator[str]:
        """How often each source will be read, where examples are drawn from streams or by weight."""
        if plan.steps is None or not (self.streams or self.datasets[0].weight is not None):
            return
        sources = self._sources()
        weights = [each.weight or 1.0 for each in self.datasets[: len(sources)]]
        tokens = plan.steps * (plan.examples_per_step or 0) * self._raw_length
        for (name, references), weight in zip(sources.items(), weights, strict=True):
            sizes = [text_bytes(reference, self.max_train_samples) for reference in references]
            known = sum(size for size in sizes if size is not None)
            if None in sizes or not known:
                yield f"how long {name} is will be known when it has been read, and so how often it is"
            else:
                epochs = tokens * weight / sum(weights) * BYTES_PER_TOKEN / known
                yield f"about {epochs:.3g} epochs of {name}, taking a token for {BYTES_PER_TOKEN} bytes"

    def head_left(self) -> Head:
        head: Head = self.objective.head
        return head

    def run(self, context: Context) -> None:
        """Pack, train, save."""
        from pipelines.data.mixtures import Mixture
        from pipelines.models import varlen
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.trainer import fit

        tokenizer, objective = context.open_tokenizer(), self.objective
        model = tuning.opened(self, context, objective.head)
        self._refuse(model.config)
        if not self.cross_document_attention and objective.by_sequences and self.tuner.takes_masks:
            varlen.adopt_where_it_serves(context, model, self.arguments, self.block_size)
        collate = self.collator(tokenizer, context.seed, model.config)
        examples = self._examples(context, tokenizer)
        try:
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
            report: dict[str, Any] = {**metrics}
            if context.world.is_main:
                report |= self._report(context, examples, metrics)
        finally:
            if isinstance(examples, Mixture):
                examples.close()
        context.barrier()
        if context.world.is_main:
            shutil.rmtree(context.folder / STREAMS, ignore_errors=True)
        save_stage(context, objective.finish(model), tokenizer, objective.head, report, tuner)

    def _refuse(self, config: PreTrainedConfig) -> None:
        """Raise Misfit when the open model cannot do the stage, for a checkpoint shows its shape only now."""
        longest = usable_positions(config)
        if longest is not None and longest < self.block_size:
            raise IncompatibleError(
                f"block_size is {self.block_size}, but the model has positions for {longest} tokens; lower it"
            )
        for place, sentence in self._unfit(config.to_dict()):
            raise IncompatibleError(f"{place[0]} {sentence}")
        if self.objective.own_masks and (why := loses_window(config.to_dict(), self.block_size)) is not None:
            raise IncompatibleError(f"objective is {self.objective.name}, which {why}")

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig) -> Collate:
        """The objective's own, which keeps documents apart where the stage does; evaluation asks with it too."""
        collate = self.objective.collate(tokenizer, seed, config)
        if self.cross_document_attention:
            return collate
        from pipelines.data.packing import end_of_text
        from pipelines.models.varlen import names_sequences
        from pipelines.objectives.attention_masks import SeparateDocuments

        masks = not names_sequences(config)
        if masks and (why := loses_window(config.to_dict(), self.block_size)) is not None:
            raise IncompatibleError(f"cross_document_attention is false, which {why}")
        end = end_of_text(tokenizer) if self.objective.layout == "stream" else tokenizer.sep_token_id
        return SeparateDocuments(collate, end, self.objective.causal, masks)

    def _examples(self, context: Context, tokenizer: PreTrainedTokenizerBase) -> Blocks | Spans | Mixture:
        """The text as the objective wants it: prepared by the main process and mapped by all, or read on the way."""
        if self.datasets[0].weight is None and not self.streams:
            return self._mapped(context, tokenizer, self.datasets, self.content(context.recipe))
        from pipelines.data.mixtures import Mixture, ShuffledExamples

        sources: list[ExampleSource] = []
        length = 0
        for number, references in enumerate(self._sources().values()):
            if references[0].streaming:
                sources.append(self._streamed(context, tokenizer, references, number))
                continue
            key = f"datasets[{number}].{references[0].text}"
            mapped = self._mapped(context, tokenizer, references, {key: references[0].content()})
            sources.append(ShuffledExamples(mapped, self._raw_length, context.seed, number))
            length += len(mapped)
        if self.streams:
            length = self.arguments.max_steps * self._examples_per_step(context)
        weights = [1.0 if each.weight is None else each.weight for each in self.datasets[: len(sources)]]
        return Mixture(sources, weights, context.seed, length)

    @property
    def _raw_length(self) -> int:
        length: int = self.objective.raw_length(self.block_size)
        return length

    def _examples_per_step(self, context: Context) -> int:
        each, accumulated = self.arguments.batch_sizes(context.world.size, context.fits)
        return each * accumulated * context.world.size

    def _mapped(
        self,
        context: Context,
        tokenizer: PreTrainedTokenizerBase,
        references: Sequence[PretrainingDataset],
        content: Mapping[str, str],
    ) -> Blocks | Spans:
        from pipelines.data.packing import prepared_key
        from pipelines.data.sentences import lay_out
        from pipelines.data.text_reader import JoinedTexts

        key = prepared_key(tokenizer, content, self.max_train_samples)

        def laid_out() -> Blocks | Spans:
            openers = [partial(each.texts, self.max_train_samples) for each in references]
            texts = _watched(context, lambda: JoinedTexts(openers))
            args = (tokenizer, texts, self._raw_length, context.cache, key, self.dataset_num_proc)
            return lay_out(self.objective.layout, *args)

        if context.world.is_main:
            laid_out()
        context.barrier()
        return laid_out()

    def _streamed(
        self,
        context: Context,
        tokenizer: PreTrainedTokenizerBase,
        references: Sequence[PretrainingDataset],
        number: int,
    ) -> ExampleSource:
        from pipelines.data.streaming import StreamedExamples
        from pipelines.data.text_reader import JoinedTexts

        openers = [partial(each.texts, self.max_train_samples, streaming=True) for each in references]

        def opened(start: Position | None) -> Readable:
            return JoinedTexts(openers, start)

        return StreamedExamples(
            opened,
            tokenizer,
            self.objective.layout,
            self._raw_length,
            context.folder / STREAMS / str(number),
            seed=context.seed,
            source=number,
            buffer_size=self.buffer_size,
            processes=self.dataset_num_proc,
            ahead=context.world.is_main,
        )

    def _report(
        self, context: Context, examples: Blocks | Spans | Mixture, metrics: Mapping[str, float]
    ) -> dict[str, Any]:
        """What `metrics.json` says of the text beside what every training stage says."""
        from pipelines.data.mixtures import Mixture

        added = self.block_size - self._raw_length
        if not isinstance(examples, Mixture):
            taken = examples.tokens if self.objective.layout == "sentences" else len(examples) * self._raw_length
            return {
                "train_tokens": metrics["train_steps"] and round(metrics["epoch"] * (taken + added * len(examples)))
            }
        drawn = examples.drawn(self._draws(context, len(examples), int(metrics["train_steps"])))
        tokens = [each.tokens + added * each.examples for each in drawn]
        shares = [count / max(1, sum(tokens)) for count in tokens]
        names = list(self._sources())
        datasets = {
            name: {"examples": each.examples, "tokens": count, "share": share, "epochs": each.epochs}
            | ({} if each.documents is None else {"documents": each.documents})
            for name, each, count, share in zip(names, drawn, tokens, shares, strict=True)
        }
        portions = [
            f"{count:,} tokens of {name} ({share:.1%}, {each.epochs:.3g} epochs)"
            for name, each, count, share in zip(names, drawn, tokens, shares, strict=True)
        ]
        context.events.emit("progress", what="tokens drawn", message=f"drew {'; '.join(portions)}", datasets=datasets)
        report = {"train_tokens": sum(tokens), "datasets": datasets}
        # A run through streams is one epoch to the Trainer, whatever they hold.
        return report if not self.streams else report | {"epoch": min(each.epochs for each in drawn)}

    def _draws(self, context: Context, length: int, steps: int) -> int:
        """Examples that so many steps took, the last step of an epoch of `length` being smaller."""
        per_step = self._examples_per_step(context)
        epochs, inside = divmod(steps, -(-length // per_step))
        return epochs * length + min(inside * per_step, length)


def _watched(context: Context, opened: Callable[[], Readable]) -> Iterator[str]:
    """The texts, with a progress event now and then that says how far they are read."""
    texts, last_report = opened(), time.monotonic()
    if context.world.is_main:
        context.events.emit("progress", what="tokenising")
    for text in texts:
        yield text
        if context.world.is_main and time.monotonic() - last_report >= PROGRESS_EVERY:
            last_report = time.monotonic()
            done, everything = texts.read()
            if everything >= MEGABYTE:
                context.events.emit(
                    "progress", what="MB tokenised", step=done // MEGABYTE, total=everything // MEGABYTE
                )


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
