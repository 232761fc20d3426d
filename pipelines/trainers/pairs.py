"""Fine-tuning on pairs of a source and a target, which the supervised stage does for tasks of the kind `seq2seq`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.data.tasks import resolve
from pipelines.errors import DataError, ModelError
from pipelines.fields import architectures
from pipelines.fields.positions import usable_positions
from pipelines.registry import OBJECTIVES

if TYPE_CHECKING:
    from pipelines.data.encoding import Examples
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.supervised import Supervised

KIND = "seq2seq"
"""The kind of tasks whose answers are texts."""
KEYS = ("objective", "max_source_length", "max_target_length")
"""Keys of the supervised stage that only such tasks have."""


def is_pairs(stage: Supervised) -> bool:
    """Whether the stage's task has texts for answers."""
    kind: str = resolve(stage.task, stage.id).kind
    return kind == KIND


def objective_of(stage: Supervised) -> Any:
    """What the model is asked to do with a pair: that of the recipe, else teacher forcing."""
    return OBJECTIVES.load("seq2seq")() if stage.objective is None else stage.objective


def lengths_of(stage: Supervised) -> tuple[int, int]:
    """Tokens after which a source and a target are cut."""
    return stage.max_source_length or stage.max_length, stage.max_target_length or stage.max_length


def mistakes(stage: Supervised, recipe: Recipe) -> Iterable[Found]:
    """What is wrong with the keys that pairs are about, and with a model that is to learn from them."""
    if not is_pairs(stage):
        for key in KEYS:
            if getattr(stage, key) is not None:
                kind = resolve(stage.task, stage.id).kind
                yield (key,), f"is for tasks of the kind seq2seq, but this task's kind is {kind}; leave it out"
        return
    objective = objective_of(stage)
    if not objective.pairs:
        fit = ", ".join(name for name in OBJECTIVES if OBJECTIVES.load(name).pairs)
        yield ("objective",), f"is {objective.name}, which learns from text alone; a task of pairs takes one of {fit}"
        return
    shape = recipe.model.architecture
    if shape is None:
        return
    if objective.head.kind not in (known := architectures.heads(shape)):
        yield ("task",), f"is a task of pairs, which needs a model that writes ({objective.head.kind}); this architecture has {', '.join(known)}"
        return
    words = architectures.resolve(shape)
    if (why := objective.misfit(words)) is not None:
        yield ("objective",), f"is {objective.name}, which {why}"
    positions = words.get("max_position_embeddings")
    for key in KEYS[1:]:
        given = getattr(stage, key)
        if isinstance(positions, int) and isinstance(given, int) and positions < given:
            yield (key,), f"is {given}, but the model has max_position_embeddings {positions}"


def run(stage: Supervised, context: Context) -> None:
    """Encode the pairs, train, save."""
    from pipelines.trainers.arguments import in_todays_names
    from pipelines.trainers.loop import fit
    from pipelines.trainers.saving import save_stage
    from pipelines.trainers.supervised import set_aside

    task = resolve(stage.task, stage.id)
    tokenizer = context.open_tokenizer()
    objective = objective_of(stage)
    model = context.open_model(objective.head, keep_base=context.folder / "base" if stage.tuner.adapts else None)
    why = objective.misfit({"model_type": model.config.model_type, **model.config.to_dict()})
    if why is not None:
        raise ModelError(f"the objective {objective.name} {why}")
    examples = _encoded(stage, context, tokenizer, model)
    words, selection = in_todays_names(stage.arguments), None
    if words.get("eval_strategy", "no") != "no":
        if len(examples) < 2:
            raise DataError(f"task '{task.name}' has one training row, too few to set one aside for eval_strategy")
        examples, selection = set_aside(examples, context.seed, stage.max_eval_samples)
    collate = objective.collate(tokenizer, context.seed, model.config)
    model, metrics = fit(
        context, stage.tuner.apply(model), tokenizer, examples,
        collate=collate, loss=objective.loss, label_names=objective.label_names,
        arguments=stage.arguments if selection is None else {"metric_for_best_model": "loss"} | stage.arguments,
        lengths=None if words.get("train_sampling_strategy") == "random" else examples.lengths,
        marked=True, selection=selection, early_stopping_patience=stage.early_stopping_patience,
    )  # fmt: skip
    save_stage(context, model, tokenizer, objective.head, metrics)


def _encoded(stage: Supervised, context: Context, tokenizer: Any, model: Any) -> Examples:
    """The training pairs, none longer than the model can read. Raises DataError."""
    from pipelines.data.pairs import encode_pairs

    task = resolve(stage.task, stage.id)
    rows = task.rows("train", stage.max_train_samples)
    if len(rows) == 0:
        raise DataError(f"task '{task.name}' has no training rows")
    positions = usable_positions(model.config)
    source, target = (length if positions is None else min(length, positions) for length in lengths_of(stage))
    examples = encode_pairs(tokenizer, rows, source, target)
    if context.world.is_main and examples.truncated:
        share = examples.truncated / len(examples)
        context.events.emit(
            "warning" if share > 0.05 else "progress",
            message=f"{examples.truncated} of {len(examples)} pairs are cut to {source} tokens of the source and {target} "
            f"of the target ({share:.1%}); max_source_length and max_target_length set the limits",
        )
    return examples
