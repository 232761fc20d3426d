"""The numbers of DPO that a recipe may set among `arguments`, the names of its losses, and what cannot go together.

Light: recipe checks import it. `dpo_losses` says what each loss is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelines.core.config import Block, ConfigIssue
from pipelines.core.registry import nearest
from pipelines.core.training_arguments import Accepts, NotNegative, Positive, Switch, TrainingArguments, choice
from pipelines.trainers import model_selection

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe
    from pipelines.trainers.dpo import DPO
    from pipelines.trainers.kto import KTO


LIKELIHOOD = "sft"
"""The loss of the chosen answers' tokens, counted by tokens and not by pairs."""
NAMES = (
    "sigmoid",
    "sigmoid_norm",
    "robust",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "simpo",
    "orpo",
    LIKELIHOOD,
)
"""What `loss_type` may say."""
WITHOUT_REFERENCE = ("simpo", "orpo", LIKELIHOOD)
"""Losses that look at no reference."""
PER_TOKEN = ("sigmoid_norm", "ipo")
"""Losses that divide the log ratio of an answer by its tokens."""
SMOOTHED = ("sigmoid", "sigmoid_norm", "robust", "exo_pair", "simpo")
"""Losses that `label_smoothing` changes."""


class ReferenceStage(Block):
    """The stage whose model a policy is held to."""

    source: str = Field(alias="from")
    """Its id."""


class DPOArguments(TrainingArguments):
    """transformers TrainingArguments by name, `global_batch_size`, and DPO's own numbers:
    docs/how-to/preference-optimisation.md says what they do, and where they come from."""

    beta: Positive = 0.1
    """How firmly the policy is held to its reference."""
    loss_type: Annotated[str | list[str], Accepts(choice(*NAMES), listed=True)] = "sigmoid"
    """The loss, or a list of several."""
    loss_weights: Annotated[float | list[float] | None, Accepts("float", above=0, listed=True)] = Field(
        None, validate_default=False
    )
    """What each of several losses weighs. Default: 1 each."""
    temperature: Annotated[float | None, Accepts("float", above=0)] = Field(None, validate_default=False)
    """Divides the logits of policy and reference, so that what learns is the policy that samples. Default: the
    temperature at which the feedback that is learnt was sampled, 1 for other preferences."""
    label_smoothing: Annotated[float, Accepts("float", at_least=0, below=0.5)] = 0.0
    """The probability that a preference is wrong."""
    simpo_gamma: NotNegative = 0.5
    """The margin of the loss simpo."""
    reference_free: Switch = False
    """Look at no reference, whatever the loss."""
    precompute_ref_log_probs: Switch = False
    """Ask the reference once, before training."""
    precompute_ref_batch_size: Annotated[int | None, Accepts("int", at_least=1)] = Field(None, validate_default=False)
    """Pairs at a time when the reference is asked beforehand. Default: `per_device_train_batch_size`."""
    disable_dropout: Switch = True
    """Drop nothing while training."""

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses."""
        return _listed(self.loss_type)

    @property
    def weighted_losses(self) -> dict[str, float]:
        """Every loss with what it weighs."""
        weights = [1.0] * len(self.losses) if self.loss_weights is None else _listed(self.loss_weights)
        return dict(zip(self.losses, map(float, weights), strict=True))

    @property
    def needs_reference(self) -> bool:
        """Whether a loss looks at the reference."""
        return not self.reference_free and any(name not in WITHOUT_REFERENCE for name in self.losses)


def sampled_at(stage: DPO | KTO, recipe: Recipe) -> set[float]:
    """The temperatures at which the stages sampled whose preferences `stage` learns."""
    found = (getattr(recipe.stage(source), "temperature", None) for source in stage.preference_reads())
    return {float(each) for each in found if each is not None}


def temperature_issues(stage: DPO | KTO, recipe: Recipe) -> Iterable[ConfigIssue]:
    """Whether it is plain at which temperature a policy learns, places relative to the stage."""
    if stage.arguments.temperature is None and len(found := sampled_at(stage, recipe)) > 1:
        yield (
            ("arguments", "temperature"),
            f"is missing, and the preferences were sampled at {', '.join(f'{each:g}' for each in sorted(found))}; "
            "name the one that the policy will be sampled at",
        )


def issues(stage: DPO, recipe: Recipe) -> Iterable[ConfigIssue]:
    """What cannot go together in a stage with these settings, places relative to the stage."""
    yield from temperature_issues(stage, recipe)
    yield from _of_losses(stage.arguments)
    yield from _of_reference(stage, recipe, stage.arguments)
    yield from model_selection.issues(stage.early_stopping_patience, stage.arguments)


def _of_losses(arguments: DPOArguments) -> Iterable[ConfigIssue]:
    names, shares = arguments.losses, arguments.loss_weights
    if len(set(names)) < len(names):
        yield ("arguments", "loss_type"), "names a loss twice; give it a weight in loss_weights instead"
    if shares is not None and len(_listed(shares)) != len(names):
        yield (
            ("arguments", "loss_weights"),
            f"has {len(_listed(shares))} weights for {len(names)} losses; give one for each of {', '.join(names)}",
        )
    if arguments.label_smoothing and not set(names) & set(SMOOTHED):
        yield (
            ("arguments", "label_smoothing"),
            f"changes the losses {', '.join(SMOOTHED)}, and loss_type is {', '.join(names)}; leave it out",
        )
    if "exo_pair" in names and not arguments.label_smoothing:
        yield (
            ("arguments", "label_smoothing"),
            "must be above 0 for loss_type exo_pair, whose target is the smoothed label; its authors take 1e-3",
        )
    if "simpo_gamma" in arguments.model_fields_set and "simpo" not in names:
        yield (
            ("arguments", "simpo_gamma"),
            f"is the margin of loss_type simpo, and loss_type is {', '.join(names)}; leave it out",
        )


def _of_reference(stage: DPO, recipe: Recipe, arguments: DPOArguments) -> Iterable[ConfigIssue]:
    names = arguments.losses
    without = all(name in WITHOUT_REFERENCE for name in names)
    free = arguments.reference_free
    why = (
        f"loss_type {', '.join(names)} looks at no reference" if without else "reference_free is true" if free else None
    )
    if free and without:
        yield (
            ("arguments", "reference_free"),
            f"says nothing new: loss_type {', '.join(names)} looks at no reference; leave it out",
        )
    for key in ("precompute_ref_log_probs", "precompute_ref_batch_size"):
        if getattr(arguments, key) and why is not None:
            yield ("arguments", key), f"asks a reference, but {why}; leave it out"
    if arguments.precompute_ref_batch_size and not arguments.precompute_ref_log_probs:
        yield ("arguments", "precompute_ref_batch_size"), "is for precompute_ref_log_probs: true; leave it out"
    if stage.reference is None:
        return
    if why is not None:
        yield ("reference",), f"is given, but {why}; leave one of the two out"
    earlier = {each.id: each for each in recipe.stages[: recipe.stages.index(stage)]}
    writing = [name for name, each in earlier.items() if each.trains and not each.scores]
    if (named := stage.reference.source) not in writing:
        wrong = "leaves no model that writes" if named in earlier else "is no earlier stage"
        yield (
            ("reference", "from"),
            f"'{named}' {wrong}.{nearest(named, writing)} Those that do: {', '.join(writing) or 'none'}",
        )


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
