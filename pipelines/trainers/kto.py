"""The stage that learns from single answers which are good or bad, by TRL's KTO.

Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", arxiv.org/abs/2402.01306: no pairs are needed,
only whether an answer is wanted; losses weigh more than gains of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Found, Pick
from pipelines.fields.arguments import COUNT, SWITCH, Argument
from pipelines.recipe import Stage
from pipelines.registry import TUNERS
from pipelines.trainers import trl_stage
from pipelines.trainers.arguments import batch_sizes, in_todays_names
from pipelines.trainers.own_arguments import Setting, checked_with, split
from pipelines.trainers.preference_subject import PreferenceSubject

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe

WITHOUT_KL = "apo_zero_unpaired"
SETTINGS: dict[str, Setting] = {
    "beta": Setting(Argument("float", above=0), 0.1),
    "loss_type": Setting(Argument(f"=kto|={WITHOUT_KL}"), "kto"),
    "desirable_weight": Setting(Argument("float", at_least=0), 1.0),
    "undesirable_weight": Setting(Argument("float", at_least=0), 1.0),
    "precompute_ref_log_probs": Setting(SWITCH, False),
    "precompute_ref_batch_size": Setting(COUNT, None),
    "disable_dropout": Setting(SWITCH, True),
}
"""TRL's own, with its defaults."""


class KTO(PreferenceSubject, Stage):
    """Make wanted answers likelier and unwanted ones less likely."""

    stage: Literal["kto"] = "kto"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn: `full` or `lora`."""
    arguments: Annotated[dict[str, Any], BeforeValidator(checked_with(SETTINGS))] = Field(default_factory=dict)
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's `beta` (0.1), `loss_type` (kto), `desirable_weight`,
    `undesirable_weight`, `precompute_ref_log_probs`, `precompute_ref_batch_size` and `disable_dropout` (true)."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        yield from self.preference_mistakes(self.id, recipe)
        yield from trl_stage.mistakes(self, recipe, self.max_length)
        own, rest = split(self.arguments, SETTINGS)
        words = in_todays_names(rest)
        if own["loss_type"] != WITHOUT_KL and words.get("per_device_train_batch_size", words.get("global_batch_size", 8)) == 1:
            yield ("arguments", "per_device_train_batch_size"), f"is 1, but the KL of KTO is taken from other answers of the batch; make it 2 or more, or take loss_type: {WITHOUT_KL}"
        if words.get("train_sampling_strategy") is not None:
            yield ("arguments", "train_sampling_strategy"), "is decided by KTO, which compares neighbours of a fixed order; leave it out"
        if own["precompute_ref_batch_size"] and not own["precompute_ref_log_probs"]:
            yield ("arguments", "precompute_ref_batch_size"), "is for precompute_ref_log_probs: true; leave it out"

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.preference_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy's stage, and those that wrote the preferences."""
        return tuple(dict.fromkeys((*super().reads(recipe), *self.preference_reads())))

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.preference_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return self.needed_tokens()

    def run(self, context: Context) -> None:
        """Encode, train by TRL, save."""
        from pipelines.trainers import trl_bridge, tuning
        from pipelines.trainers.labelled_answers import encoded
        from pipelines.trainers.saving import save_stage

        model, head, tokenizer = trl_stage.opened(self, context)
        own, arguments = split(self.arguments, SETTINGS)
        each, _ = batch_sizes(in_todays_names(arguments), context.world.size)
        rows = encoded(self, context, model, tokenizer, tuning.room_for_text(self, model), each if own["loss_type"] != WITHOUT_KL else None)
        model, told = trl_bridge.prepared(model, tokenizer)
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = trl_bridge.train(
            context, "KTO", model, told, tuner, arguments, own | {"max_length": None, "train_sampling_strategy": "sequential"}, rows
        )
        save_stage(context, model, tokenizer, head, metrics, tuner)
        trl_stage.leave(context, self)
