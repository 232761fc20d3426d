"""Which pretrained model is measured on which held-out text, and what it takes to ask it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Context, Head
from pipelines.core.recipe import START, Recipe, Stage

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from pipelines.data.references import DatasetReference
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.evaluation.language_modeling import HeldOutModel, HeldOutScores
    from pipelines.evaluation.ngrams import NGrams
    from pipelines.objectives.objective import Objective


class PretrainedStage(Protocol):
    """What is read of the pretrain stage whose model is measured."""

    id: str
    objective: Objective
    block_size: int
    datasets: tuple[DatasetReference, ...]
    max_train_samples: int | None

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PretrainedConfig) -> Callable[..., Any]:
        """What makes batches of its examples."""

    def content(self, recipe: Recipe) -> dict[str, str]:
        """Hashes of what it was trained on."""

    def learnt_texts(self, folder: Path | None) -> Iterator[str]:
        """What the complete stage in `folder` was trained on."""

    def learnt_rows(self, folder: Path | None) -> list[int | None]:
        """Which part of its text that is."""


def pretrained(recipe: Recipe, stage: Evaluate) -> tuple[PretrainedStage | None, list[ConfigIssue]]:
    """The pretrain stage whose model is measured, None where there is none, and what is wrong with asking for it.

    `from` names it; else it is the latest before this stage. Places of mistakes are relative to the stage.
    """
    earlier = recipe.stages[: recipe.stages.index(stage)]
    pretrain_stages: list[Any] = [each for each in earlier if each.stage == "pretrain"]
    allowed = (
        f"Allowed: {', '.join(each.id for each in pretrain_stages)}" if pretrain_stages else "no earlier stage is one"
    )
    if stage.source is None:
        if pretrain_stages:
            return pretrain_stages[-1], _unfit(stage, pretrain_stages[-1])
        return None, [
            (
                ("datasets",),
                "measure the model of a pretrain stage, but no earlier stage is one; add {stage: pretrain, "
                "…} before it",
            )
        ]
    chosen = next((each for each in pretrain_stages if each.id == stage.source), None)
    if chosen is not None:
        return chosen, _unfit(stage, chosen)
    other: Stage | None = next((each for each in earlier if each.id == stage.source), None)
    if other is None and stage.source != START:  # `recipe` reports ids that do not exist
        return None, []
    what = "the recipe's own model" if other is None else f"a '{other.stage}' stage"
    why = "but 'datasets' measure what a model was pretrained to do, so it must come straight from a pretrain stage"
    return None, [(("from",), f"'{stage.source}' is {what}, {why}. {allowed}")]


def _unfit(stage: Evaluate, chosen: PretrainedStage) -> list[ConfigIssue]:
    issues: list[ConfigIssue] = []
    names = [(each.path, each.name, each.split, each.text) for each in stage.datasets or ()]
    issues += [
        (("datasets", at), f"'{names[at][0]}', split '{names[at][2]}', is named twice") for at in _repeated(names)
    ]
    if stage.stride is not None and not chosen.objective.every_token:
        issues.append(
            (
                ("stride",),
                f"moves the windows of causal_lm, but '{chosen.id}' was trained with {chosen.objective.name}; "
                "leave it out",
            )
        )
    elif stage.stride is not None and stage.stride > chosen.block_size:
        issues.append(
            (
                ("stride",),
                f"is {stage.stride}, must be at most {chosen.block_size}, the block_size of '{chosen.id}': "
                "windows would leave tokens out",
            )
        )
    return issues


def _repeated(values: Sequence[object]) -> list[int]:
    return [at for at, value in enumerate(values) if value in values[:at]]


def read_by(context: Context, stage: Evaluate, chosen: PretrainedStage) -> HeldOutModel:
    """The chosen stage's model, ready to be asked."""
    from pipelines.evaluation.language_modeling import MASK_SEED, HeldOutModel
    from pipelines.models.predict import device

    objective, tokenizer = chosen.objective, context.open_tokenizer()
    model = context.open_model(objective.head, stage_id=chosen.id, trained_head=True)
    collate = chosen.collator(tokenizer, MASK_SEED, model.config)
    if "replaced" in objective.label_names:
        model = objective.prepare(model, tokenizer, lambda head, **_: _generator(context, chosen, head))
    return HeldOutModel(
        model,
        tokenizer,
        objective,
        collate,
        chosen.block_size,
        stage.stride or chosen.block_size,
        stage.per_device_eval_batch_size,
        device(),
        context.world,
        context.gather,
    )


def _generator(context: Context, chosen: PretrainedStage, head: Head) -> Any:
    """The generator that the chosen stage left beside its model."""
    folder = context.stage_folders[chosen.id]
    places = [folder / "model" / "generator", folder / "generator"]
    place = next((each for each in places if each.is_dir()), None)
    if place is None:
        raise ModelError(
            f"stage '{chosen.id}' left no generator beside its model, which fills in the tokens to be judged; "
            "train it again"
        )
    from pipelines.models.opening import open_folder

    return open_folder(place, head, context.seed, trained_head=True)


def peers(context: Context, chosen: PretrainedStage, tokenizer: PreTrainedTokenizerBase) -> NGrams:
    """The models of one and of two tokens, fitted on the rows that the chosen stage read; kept between runs."""
    from pipelines.data.documents import token_streams
    from pipelines.data.packing import end_of_text
    from pipelines.evaluation.ngrams import kept

    folder = context.stage_folders.get(chosen.id)
    identity = {
        "tokenizer": tokenizer_hash(tokenizer),
        "data": chosen.content(context.recipe),
        "rows": [chosen.max_train_samples, *chosen.learnt_rows(folder)],
    }

    def fitted() -> NGrams:
        streams = token_streams(tokenizer, chosen.learnt_texts(folder))
        return kept(context.cache, identity, streams, len(tokenizer), end_of_text(tokenizer))

    if context.world.is_main:
        context.events.emit("progress", what="counting tokens for the unigram and the bigram model")
        fitted()
    context.barrier()
    return fitted()


def measured(
    context: Context, stage: Evaluate, reader: HeldOutModel, reference: DatasetReference, ngrams: NGrams | None
) -> HeldOutScores:
    """The figures of one data set."""
    from pipelines.evaluation.language_modeling import measure

    texts = reference.rows(stage.max_eval_samples)
    key = f"{tokenizer_hash(reader.tokenizer)} {reference.content()} {reference.text} {stage.max_eval_samples}"
    return measure(reader, texts, ngrams, context.cache, key, context.seed)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """What tells two tokenizers apart."""
    backend = tokenizer.backend_tokenizer.to_str() if hasattr(tokenizer, "backend_tokenizer") else repr(tokenizer)
    return hashlib.sha256(backend.encode()).hexdigest()
