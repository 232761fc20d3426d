"""The model that a stage trains, opened and tuned: what its tuner and its policy need, said before anything loads.

The policy is the model that writes, which stages on preferences and rewards read and train further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue
from pipelines.core.errors import IncompatibleError, ModelError
from pipelines.core.interfaces import Head, HeadKind
from pipelines.core.model_types import usable_positions
from pipelines.core.recipe import START
from pipelines.core.registry import TUNERS, nearest
from pipelines.models.heads import WRITERS, read_by, writing_kinds
from pipelines.models.open_once import open_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe, Stage
    from pipelines.core.training_arguments import TrainingArguments
    from pipelines.data.prompts import Prompts
    from pipelines.tuners.tuner import TunerBlock


class TrainingStage(Protocol):
    """What a stage that trains has."""

    id: str
    stage: str
    tuner: TunerBlock
    arguments: TrainingArguments

    def reads(self, recipe: Recipe) -> tuple[str, ...]: ...


def issues(stage: TrainingStage, recipe: Recipe, head: str, longest: int) -> Iterable[ConfigIssue]:
    """Why the tuner cannot serve this stage, as far as the recipe tells. `longest` is the longest text it will see."""
    words = recipe.model.words()
    if words is not None and (why := misfit(stage.tuner, words, head)) is not None:
        yield ("tuner",), f"is {stage.tuner.name}, which {why}"
    if words is not None and _is_baseline(words) and stage.arguments.activation_checkpointing:
        key = ("arguments", "activation_checkpointing")
        yield key, "is true, which is for the layers of transformers; leave it out for families rnn and cnn"
    taken = stage.tuner.positions
    positions = recipe.model.positions() if taken and recipe.model.checkpoint is None else None  # else texts are cut
    if positions is not None and positions - taken < longest <= positions:
        yield (
            ("tuner",),
            (
                f"is {stage.tuner.name}, whose {taken} virtual tokens and texts of {longest} tokens are more than "
                f"the model's max_position_embeddings {positions}; lower one of the two"
            ),
        )
    if stage.arguments.optim == "muon" and (stage.stage != "pretrain" or not stage.tuner.trains_all):
        what = f"the tuner {stage.tuner.name}" if stage.stage == "pretrain" else f"{stage.stage} stages"
        yield ("arguments", "optim"), f"is muon, which is for pretraining all weights and not for {what}; leave it out"
    if stage.arguments.per_device_train_batch_size == "auto" and stage.stage not in ("pretrain", "supervised"):
        key = ("arguments", "per_device_train_batch_size")
        yield key, "is auto, which is for pretrain and supervised stages; write a number"
    yield from profile_issues(stage, recipe, recipe.launch.profile)
    yield from _two_schedules(stage)
    yield from _on_unmergeable(stage, recipe)
    yield from _on_adapters(stage, recipe)


def misfit(tuner: TunerBlock, words: Mapping[str, Any], head: str) -> str | None:
    """Why a tuner cannot serve a model with these config words and this kind of head, completing `the tuner lora …`."""
    if _is_baseline(words) and not tuner.any_layers:
        return "changes the layers of transformers, which families rnn and cnn do not have; use full or last_layer"
    return tuner.misfit(words, head)


def _is_baseline(words: Mapping[str, Any]) -> bool:
    """Whether a model with these config words is of cells or convolutions."""
    return words.get("model_type") in architecture_fields.BASELINE_RULES


DIVIDING = ("fsdp2", "zero2", "zero3")
"""Profiles of `launch` that divide what one process would hold."""
UNDIVIDED = "a model of the families rnn and cnn, which launch.profile {} does not divide; use ddp"


def profile_issues(stage: TrainingStage, recipe: Recipe, profile: str) -> Iterable[ConfigIssue]:
    """Why a stage cannot run under a profile of `launch`, as far as the recipe tells; places relative to the stage."""
    if profile in ("ddp", *DIVIDING) and getattr(stage, "rollouts", None) == "vllm":
        yield ("rollouts",), f"is vllm, which is used on one process here; use the profile single instead of {profile}"
    if profile not in DIVIDING:
        return
    if _is_baseline(recipe.model.words() or {}):
        yield ("tuner",), f"trains {UNDIVIDED.format(profile)}"
    yield from sharding_issues(stage) if profile == "fsdp2" else _zero_issues(stage, profile)


DIVIDED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Optimizers that move each number of a weight by itself, so that every process can move its own."""


def sharding_issues(stage: TrainingStage) -> Iterable[ConfigIssue]:
    """What weights that are divided among processes cannot do; places relative to the stage."""
    instead = "; use the profile ddp"
    if stage.arguments.optim not in DIVIDED_OPTIMIZERS:
        allowed = ", ".join(DIVIDED_OPTIMIZERS)
        yield ("arguments", "optim"), f"is {stage.arguments.optim}, which needs whole matrices; fsdp2 has {allowed}"
    if stage.arguments.torch_compile:
        yield ("arguments", "torch_compile"), f"is true, which is not offered with the profile fsdp2{instead}"
    if stage.tuner.unfreezes:
        yield (
            ("tuner",),
            f"is {stage.tuner.name} with gradual_unfreezing, which fsdp2 cannot follow: it decides once which weights "
            f"learn{instead}",
        )
    if stage.tuner.quantization:
        yield ("tuner",), f"is {stage.tuner.name}, whose packed weights fsdp2 cannot divide{instead}"
    if getattr(stage.tuner, "value_regularization", 0):
        yield (
            ("tuner", "value_regularization"),
            f"is a penalty on whole matrices, which no process has under fsdp2; make it 0, or{instead[1:]}",
        )
    if getattr(stage, "gradient_surgery", None):
        yield ("gradient_surgery",), "works on one process, and fsdp2 has several; use the profile single with one"
    if getattr(stage, "gradient_conflicts", None):
        yield ("gradient_conflicts",), f"compares whole gradients, which no process has under fsdp2{instead}"
    if stage.stage in ("grpo", "rloo"):
        yield ("stage",), f"is {stage.stage}, whose sampling by TRL gathers no divided weights{instead}"


def _zero_issues(stage: TrainingStage, profile: str) -> Iterable[ConfigIssue]:
    """What DeepSpeed is not asked to do; places relative to the stage."""
    if stage.stage not in ("pretrain", "supervised"):
        yield (
            ("stage",),
            f"is {stage.stage}, but the profile {profile} is for pretrain and supervised; use fsdp2 or ddp",
        )
    if not stage.tuner.known_elsewhere or stage.tuner.unfreezes:
        allowed = " and ".join(TUNERS.where(lambda tuner: tuner.known_elsewhere))
        yield ("tuner",), f"is {stage.tuner.name}, but the profile {profile} is for {allowed}; use fsdp2 or ddp"
    if stage.arguments.optim not in ("adamw_torch", "adamw_torch_fused"):
        yield ("arguments", "optim"), f"is {stage.arguments.optim}, but the profile {profile} is for adamw_torch"
    if stage.arguments.load_best_model_at_end:
        yield ("arguments", "load_best_model_at_end"), f"is true, which is not offered with the profile {profile}"


def _two_schedules(stage: TrainingStage) -> Iterable[ConfigIssue]:
    """A tuner with a schedule of its own leaves none to `arguments`."""
    if stage.tuner.factor(0, 1) is None:
        return
    for key in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"):
        if key in stage.arguments.model_fields_set:
            yield (
                ("arguments", stage.arguments.written_name(key)),
                f"is given, but the tuner {stage.tuner.name} brings a schedule of its own; leave one of the two out",
            )


def _on_unmergeable(stage: Stage, recipe: Recipe) -> Iterable[ConfigIssue]:
    """An adapter that stays beside its base cannot be the base of further training."""
    before = next(recipe.lineage(stage), None)
    tuner = getattr(before, "tuner", None)
    if before is not None and tuner is not None and tuner.adapts and not tuner.merges:
        yield (
            ("from",),
            (
                f"is '{before.id}', whose {tuner.name} cannot be merged into its model, so nothing can be "
                "trained on top; "
                f"read the model before it: from: {recipe.model_of(before)}"
            ),
        )


def _on_adapters(stage: TrainingStage, recipe: Recipe) -> Iterable[ConfigIssue]:
    """A tuner that builds on the adapters of other stages needs them earlier, and trained on the model it reads
    itself."""
    mine = recipe.model_of(stage)
    earlier = {each.id: each for each in recipe.stages[: recipe.stages.index(stage)]}
    tuners: dict[str, Any] = {name: getattr(each, "tuner", None) for name, each in earlier.items()}
    fitting = [name for name, tuner in tuners.items() if tuner is not None and tuner.fuses]
    for position, name in enumerate(stage.tuner.stages):
        place = ("tuner", "adapters", position)
        if name not in fitting:
            fusible = " or ".join(TUNERS.where(lambda tuner: tuner.fuses))
            yield (
                place,
                f"'{name}' is no earlier stage with the tuner {fusible}.{nearest(name, fitting)} Those are: "
                f"{', '.join(fitting) or 'none'}",
            )
        elif also := tuners[name].changes_base:
            yield (
                place,
                f"'{name}' has {also[0]}: it changed the model itself, and other adapters were not trained on "
                f"that; leave {also[0]} out",
            )
        elif recipe.model_of(earlier[name]) != mine:
            base = recipe.model_of(earlier[name])
            yield (
                place,
                f"'{name}' adapts the model of '{base}', but this stage reads that of '{mine}'; write from: {base}",
            )
    if stage.tuner.stages and not set(stage.tuner.stages) <= set(stage.reads(recipe)):
        yield ("tuner",), f"is {stage.tuner.name}, which a {stage.stage} stage cannot use; use it in a supervised stage"
    if stage.tuner.stages and mine == START and recipe.model.architecture is not None:
        yield (
            ("tuner",),
            f"is {stage.tuner.name}, whose adapters need one trained base: pretrain the model first, or take "
            "a checkpoint",
        )


def adapted(stage: TrainingStage, context: Context, model: PreTrainedModel) -> tuple[TunerBlock, PreTrainedModel]:
    """(the stage's tuner, told where the stages lie that it builds on; the model as it tunes it)."""
    tuner = stage.tuner.given({name: context.stage_folders[name] / "model" for name in stage.tuner.stages})
    if getattr(tuner, "init_text", None):
        model.finery_tokenizer = context.open_tokenizer()
    return tuner, tuner.apply(model)


def opened(
    stage: TrainingStage, context: Context, head: Head, keeps_base: bool = True, trained_head: bool = False
) -> PreTrainedModel:
    """The model that the stage reads, with `head`; refused when the tuner cannot serve it. Raises Misfit.

    `keeps_base`: whether a model that lies in no folder yet is saved for an adapter to name as its base.
    `trained_head`: whether a head that was not trained is refused, with ModelError.
    """
    given: dict[str, Any] = {"trained_head": True} if trained_head else {}
    given["keep_base"] = context.folder / "base" if stage.tuner.adapts and keeps_base else None
    model = open_once(context, head, partial(context.open_model, head, **given))
    words = {"model_type": model.config.model_type, **model.config.to_dict()}
    if (why := misfit(stage.tuner, words, head.kind)) is not None:
        raise IncompatibleError(f"the tuner {stage.tuner.name} {why}")
    if _is_baseline(words) and context.world.profile in DIVIDING:
        raise IncompatibleError(f"the stage reads {UNDIVIDED.format(context.world.profile)}")
    return model


def room_for_text(stage: TrainingStage, model: PreTrainedModel) -> int | None:
    """Tokens of the longest text the tuned model can read; None where there is no bound. Raises Misfit."""
    positions = usable_positions(model.config)
    if positions is None:
        return None
    left: int = positions - stage.tuner.positions
    if left < 4:
        raise IncompatibleError(
            f"the tuner {stage.tuner.name} takes {stage.tuner.positions} of the model's {positions} "
            "positions, which leaves no room for text"
        )
    return left


DECODER: HeadKind = "causal_lm"
WHY = {
    WRITERS: (
        "which learns from answers that a model writes token by token; this architecture cannot: use a decoder "
        "or an encoder-decoder"
    ),
    (
        DECODER,
    ): "which TRL trains for decoders alone; use a decoder, or the stage dpo or ppo, which train encoder-decoders too",
}


def policy_issues(stage: Stage, recipe: Recipe, allowed: tuple[str, ...] = WRITERS) -> Iterable[ConfigIssue]:
    """Whether the recipe's model can be a policy, as far as the recipe tells; places relative to the stage."""
    if not {*_policy_heads(stage, recipe)} & {*allowed}:
        yield ("stage",), f"is {stage.stage}, {WHY[allowed]}"


def held_out_issues(arguments: TrainingArguments) -> Iterable[ConfigIssue]:
    """Arguments about rows set aside, of which a stage has none that samples from its policy; places relative to the
    stage."""
    for name in ("eval_strategy", "load_best_model_at_end"):
        if getattr(arguments, name) not in (False, "no"):
            yield (
                ("arguments", name),
                "is not offered here: no rows are set aside; use an evaluate stage with prompts and a reward",
            )


def _policy_heads(stage: Stage, recipe: Recipe) -> tuple[HeadKind, ...]:
    """The kinds of head that the policy may have, as far as the recipe tells: that of the pretraining before it, or
    those with which the recipe's model writes."""
    left = next((each.head_left() for each in recipe.lineage(stage) if each.stage == "pretrain"), None)
    return (left.kind,) if left is not None and left.kind in WRITERS else writing_kinds(recipe.model)


def head_kind(stage: Stage, recipe: Recipe) -> HeadKind:
    """The kind of head that the policy has, as far as the recipe tells; a decoder's where it does not."""
    return next(iter(_policy_heads(stage, recipe)), DECODER)


def prompt_length(prompts: Prompts, recipe: Recipe) -> int | None:
    """Tokens of a prompt as far as a recipe is refused for them: those of a checkpoint are counted once it is open, for
    they may be shorter than `max_length`."""
    return prompts.max_length if recipe.model.checkpoint is None else None


def planned_head(stage: Stage, recipe: Recipe) -> Head:
    """The head that the policy is taken to have before its model is opened."""
    return Head(head_kind(stage, recipe))


def writing_head(context: Context) -> Head:
    """The head that the model which the stage reads writes with. Raises ModelError where it writes no texts."""
    recipe = context.recipe
    return read_by(recipe, recipe.model_of(recipe.stage(context.stage_id)), context.stage_folders)


def opened_policy(
    stage: TrainingStage, context: Context, allowed: tuple[str, ...] = WRITERS
) -> tuple[PreTrainedModel, Head]:
    """(the policy that the stage reads, its head). Raises ModelError for a model that does not write, or never learnt
    to.
    """
    head = writing_head(context)
    if head.kind not in allowed:
        raise ModelError(f"the stage is {stage.stage}, {WHY[allowed]}")
    from_scratch = context.recipe.model_of(stage) == START and context.recipe.model.checkpoint is None
    return opened(stage, context, head, trained_head=not from_scratch), head
