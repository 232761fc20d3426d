"""The numbers of DPO that a recipe may set among `arguments`, the names of its losses, and what cannot go together.

The names of the losses over pairs of answers, for what must not import torch. `preference_losses` says what each is.

The numbers of DPO that a recipe may set among `arguments`, under TRL's names where TRL has them, and what cannot go
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.core.config import Block, ConfigIssue
from pipelines.core.registry import nearest
from pipelines.core.training_arguments import COUNT, SWITCH, Argument
from pipelines.trainers import model_selection
from pipelines.trainers.arguments import Setting

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe
    from pipelines.trainers.dpo_losses import Strength


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


POSITIVE = Argument("float", above=0)
SETTINGS: dict[str, Setting] = {
    "beta": Setting(POSITIVE, 0.1),
    "loss_type": Setting(Argument("|".join(f"={name}" for name in NAMES)), "sigmoid", listed=True),
    "loss_weights": Setting(POSITIVE, None, listed=True),
    "label_smoothing": Setting(Argument("float", at_least=0, below=0.5), 0.0),
    "simpo_gamma": Setting(Argument("float", at_least=0), 0.5),
    "reference_free": Setting(SWITCH, False),
    "precompute_ref_log_probs": Setting(SWITCH, False),
    "precompute_ref_batch_size": Setting(COUNT, None),
    "disable_dropout": Setting(SWITCH, True),
}
"""Each with what it is when nothing is said. docs/preference-optimisation.md says what they do, and where they
come from."""


class ReferenceStage(Block):
    """The stage whose model a policy is held to."""

    source: str = Field(alias="from")
    """Its id."""


def weights(own: Mapping[str, Any]) -> dict[str, float]:
    """Every loss with what it weighs."""
    names, given = _listed(own["loss_type"]), own["loss_weights"]
    return dict(
        zip(names, [1.0] * len(names) if given is None else [float(each) for each in _listed(given)], strict=True)
    )


def strength(own: Mapping[str, Any]) -> Strength:
    """The numbers that the losses are set by."""
    from pipelines.trainers.dpo_losses import Strength

    return Strength(float(own["beta"]), float(own["label_smoothing"]), float(own["simpo_gamma"]))


def needs_reference(own: Mapping[str, Any]) -> bool:
    """Whether a loss looks at the reference."""
    return not own["reference_free"] and any(name not in WITHOUT_REFERENCE for name in _listed(own["loss_type"]))


def mistakes(stage: Any, recipe: Recipe) -> Iterable[ConfigIssue]:
    """What cannot go together in a stage with these settings, places relative to the stage."""
    given = stage.arguments
    names = _listed(given.get("loss_type", SETTINGS["loss_type"].default))
    yield from _of_losses(given, names)
    yield from _of_reference(stage, recipe, given, names)
    yield from model_selection.mistakes(stage.early_stopping_patience, given)


def _of_losses(given: Mapping[str, Any], names: tuple[str, ...]) -> Iterable[ConfigIssue]:
    if len(set(names)) < len(names):
        yield ("arguments", "loss_type"), "names a loss twice; give it a weight in loss_weights instead"
    if (shares := given.get("loss_weights")) is not None and len(_listed(shares)) != len(names):
        yield (
            ("arguments", "loss_weights"),
            f"has {len(_listed(shares))} weights for {len(names)} losses; give one for each of {', '.join(names)}",
        )
    if given.get("label_smoothing") and not set(names) & set(SMOOTHED):
        yield (
            ("arguments", "label_smoothing"),
            f"changes the losses {', '.join(SMOOTHED)}, and loss_type is {', '.join(names)}; leave it out",
        )
    if "exo_pair" in names and not given.get("label_smoothing"):
        yield (
            ("arguments", "label_smoothing"),
            "must be above 0 for loss_type exo_pair, whose target is the smoothed label; its authors take 1e-3",
        )
    if "simpo_gamma" in given and "simpo" not in names:
        yield (
            ("arguments", "simpo_gamma"),
            f"is the margin of loss_type simpo, and loss_type is {', '.join(names)}; leave it out",
        )


def _of_reference(
    stage: Any, recipe: Recipe, given: Mapping[str, Any], names: tuple[str, ...]
) -> Iterable[ConfigIssue]:
    without = all(name in WITHOUT_REFERENCE for name in names)
    free = bool(given.get("reference_free"))
    why = (
        f"loss_type {', '.join(names)} looks at no reference" if without else "reference_free is true" if free else None
    )
    if free and without:
        yield (
            ("arguments", "reference_free"),
            f"says nothing new: loss_type {', '.join(names)} looks at no reference; leave it out",
        )
    for key in ("precompute_ref_log_probs", "precompute_ref_batch_size"):
        if given.get(key) and why is not None:
            yield ("arguments", key), f"asks a reference, but {why}; leave it out"
    if given.get("precompute_ref_batch_size") and not given.get("precompute_ref_log_probs"):
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
