"""The stage that optimises a policy on preferences directly: DPO and its relatives.

Rafailov et al. 2023, "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
arxiv.org/abs/2305.18290: the policy that maximises a reward at a bounded KL to a reference has that reward as its own
log ratio to the reference, so a loss on pairs of answers needs neither a reward model nor sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.recipe import Stage
from pipelines.core.registry import TUNERS
from pipelines.models.open_once import open_once
from pipelines.trainers import dpo_settings, model_selection, tuning
from pipelines.trainers.dpo_settings import DPOArguments, ReferenceStage
from pipelines.trainers.preferences import PreferenceSubject

if TYPE_CHECKING:
    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe

HELD_OUT_MOST = 2_000
"""Held-out pairs that the implicit reward is measured on at the end, the first of the split."""


class DPO(PreferenceSubject, Stage):
    """Make a policy prefer what people prefer, close to what it was."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: dpo, from: text, task: alpaca_eval_preferences}",
        "{stage: dpo, id: held, from: text, task: {kind: preference, train: builtin/python-docs, "
        "validation: 0.2}, reference: {from: text}, max_length: 64, max_prompt_length: 16, "
        "chat_template: simple, tuner: {name: lora, r: 2}, early_stopping_patience: 2, "
        "arguments: {beta: 0.2, loss_type: [sigmoid, sft], loss_weights: [1.0, 0.2], "
        "precompute_ref_log_probs: true, precompute_ref_batch_size: 4, disable_dropout: false, "
        "eval_strategy: epoch, load_best_model_at_end: true}}",
        "{stage: dpo, from: text, datasets: [{path: builtin/python-docs, name: preferences}], "
        "arguments: {loss_type: simpo, beta: 2.0, simpo_gamma: 1.0}}",
        "{stage: dpo, from: text, task: alpaca_eval_preferences, arguments: {loss_type: robust, "
        "label_smoothing: 0.1, reference_free: true}}",
    )
    stage: Literal["dpo"] = "dpo"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    reference: ReferenceStage | None = None
    """The stage whose model the policy is held to: `{from: sft}`. Default: the policy as it is at the start, which is
    the disabled adapter where the tuner adds one, and a frozen copy elsewhere."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and
    `load_best_model_at_end`."""
    arguments: DPOArguments = DPOArguments()
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's `beta` (0.1), `loss_type` (sigmoid, or a
    list), `loss_weights`, `label_smoothing`, `precompute_ref_log_probs`, `precompute_ref_batch_size`,
    `disable_dropout` (true), `reference_free`, and `simpo_gamma` (0.5); besides `temperature`, at which the policy is
    sampled."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from self.preference_mistakes(self.id, recipe)
        yield from tuning.policy_issues(self, recipe)
        yield from dpo_settings.issues(self, recipe)
        yield from tuning.issues(self, recipe, tuning.head_kind(self, recipe), self.max_length)

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.preference_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy's stage, the reference's, those that wrote the preferences, and those whose adapters the
        tuner builds on."""
        reference = () if self.reference is None else (self.reference.source,)
        return tuple(dict.fromkeys((*super().reads(recipe), *reference, *self.preference_reads(), *self.tuner.stages)))

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.preference_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return self.needed_tokens()

    def cost(self, planning: Planning) -> StagePlan:
        head, rows = tuning.planned_head(self, planning.recipe), self.known_rows()
        if not self.arguments.needs_reference:
            return self.preference_cost(planning, head, rows)
        if self.arguments.precompute_ref_log_probs:
            note = "the reference's one pass over the data before training is not counted"
            return self.preference_cost(planning, head, rows, note=note)
        copies = self.reference is not None or not self.tuner.keeps_base
        return self.preference_cost(planning, head, rows, forwards=1, copies=copies)

    def run(self, context: Context) -> None:
        """Encode, train, measure the implicit reward on held-out pairs, save."""
        from pipelines.models.log_probabilities import without_dropout
        from pipelines.objectives.losses import Meter
        from pipelines.trainers import dpo_step
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.dpo_step import PreferenceStep
        from pipelines.trainers.preferences import held_out_for, pairs_for
        from pipelines.trainers.reference import held_to
        from pipelines.trainers.trainer import fit

        arguments, tokenizer = self.arguments, context.open_tokenizer()
        model, head = tuning.opened_policy(self, context)
        if arguments.disable_dropout:
            without_dropout(model)
        longest = tuning.room_for_text(self, model)
        examples, together = pairs_for(self, context, model, tokenizer, longest)
        held_out, characters = held_out_for(self, model, tokenizer, longest, HELD_OUT_MOST)
        temperature = arguments.temperature or next(iter(dpo_settings.sampled_at(self, context.recipe)), 1.0)
        reference = None
        if arguments.needs_reference:
            other = None
            if self.reference is not None:
                start = partial(context.open_model, head, stage_id=self.reference.source, trained_head=True)
                other = open_once(context, head, start)
            examples, held_out, reference = held_to(
                context, model, self.tuner, arguments, together, examples, held_out, other, temperature
            )
        step = PreferenceStep(arguments.weighted_losses, arguments, reference, Meter(), temperature)
        examples, selection, overrides = model_selection.divided(
            examples, arguments, "rewards/accuracies", context.seed, self.max_eval_samples
        )
        tuner, model = tuning.adapted(self, context, model)
        collate = step.collated(together)
        model, metrics = fit(
            context,
            model,
            tokenizer,
            examples,
            collate=collate,
            loss=step,
            label_names=step.label_names,
            arguments=arguments,
            overrides=overrides,
            lengths=None if arguments.train_sampling_strategy == "random" else examples.lengths,
            selection=selection,
            early_stopping_patience=self.early_stopping_patience,
            tuner=tuner,
            meter=step.meter,
            same_steps=True,
            beside_reference=True,
        )
        if (measured := held_out if held_out is not None else selection) is not None:
            answers = dpo_step.ask(context, model, step, measured, collate, arguments.per_device_eval_batch_size)
            metrics |= dpo_step.scores(answers, context.seed, characters or None)
        save_stage(context, model, tokenizer, head, metrics, tuner)
