"""The stage that learns from single answers which are good or bad, by TRL's KTO.

Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", arxiv.org/abs/2402.01306: no pairs
are needed, only whether an answer is wanted; losses weigh more than gains of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.errors import DataError
from pipelines.core.recipe import Stage
from pipelines.core.registry import TUNERS
from pipelines.core.training_arguments import Accepts, NotNegative, Positive, Switch, TrainingArguments, choice
from pipelines.trainers import trl_stage, tuning
from pipelines.trainers.preferences import PreferenceSubject

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


WITHOUT_KL = "apo_zero_unpaired"


class KTOArguments(TrainingArguments):
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's numbers of KTO with its defaults."""

    beta: Positive = 0.1
    """How firmly the policy is held to its reference."""
    loss_type: Annotated[str, Accepts(choice("kto", WITHOUT_KL))] = "kto"
    """The loss."""
    desirable_weight: NotNegative = 1.0
    """What a wanted answer weighs."""
    undesirable_weight: NotNegative = 1.0
    """What an unwanted answer weighs."""
    precompute_ref_log_probs: Switch = False
    """Ask the reference once, before training."""
    precompute_ref_batch_size: Annotated[int | None, Accepts("int", at_least=1)] = Field(None, validate_default=False)
    """Answers at a time when the reference is asked beforehand."""
    disable_dropout: Switch = True
    """Drop nothing while training."""


class KTO(PreferenceSubject, Stage):
    """Make wanted answers likelier and unwanted ones less likely."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: kto, from: text, task: alpaca_eval_preferences}",
        "{stage: kto, id: single, from: text, datasets: [{path: builtin/python-docs, name: preferences}], "
        "max_length: 64, tuner: lora, arguments: {beta: 0.2, desirable_weight: 1.5, undesirable_weight: 0.5, "
        "loss_type: apo_zero_unpaired, disable_dropout: false}}",
    )
    stage: Literal["kto"] = "kto"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn: `full` or `lora`."""
    arguments: KTOArguments = KTOArguments()
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's `beta` (0.1), `loss_type` (kto),
    `desirable_weight`, `undesirable_weight`, `precompute_ref_log_probs`, `precompute_ref_batch_size` and
    `disable_dropout` (true)."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from self.preference_mistakes(self.id, recipe)
        yield from trl_stage.issues(self, recipe, self.max_length)
        arguments = self.arguments
        given = arguments.given()
        at_once = given.get("per_device_train_batch_size", given.get("global_batch_size"))
        if arguments.loss_type != WITHOUT_KL and at_once == 1:
            yield (
                ("arguments", "per_device_train_batch_size"),
                "is 1, but the KL of KTO is taken from other answers of the batch; make it 2 or more, "
                f"or take loss_type: {WITHOUT_KL}",
            )
        if arguments.train_sampling_strategy is not None:
            yield (
                ("arguments", "train_sampling_strategy"),
                "is decided by KTO, which compares neighbours of a fixed order; leave it out",
            )
        if arguments.precompute_ref_batch_size and not arguments.precompute_ref_log_probs:
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

    def cost(self, planning: Planning) -> StagePlan:
        pairs = self.known_rows()
        note = "a pair is counted as two answers, and an answer with one pass of the reference and two for the KL"
        return self.preference_cost(
            planning,
            tuning.planned_head(planning.recipe),
            None if pairs is None else 2 * pairs,
            sequences=1,
            forwards=3,
            copies=not self.tuner.adapts,
            note=note,
            reads=3 if self.tuner.adapts else 1,  # a reference of its own is whole on each process
        )

    def run(self, context: Context) -> None:
        """Encode, train by TRL, save."""
        from pipelines.trainers import trl, tuning
        from pipelines.trainers.checkpoints import save_stage

        model, head, tokenizer = trl_stage.opened(self, context)
        each, _ = self.arguments.batch_sizes(context.world.size)
        rows = encoded(
            self,
            context,
            model,
            tokenizer,
            tuning.room_for_text(self, model),
            each if self.arguments.loss_type != WITHOUT_KL else None,
        )
        model, marked = trl.prepared(model, tokenizer)
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = trl.train(
            context,
            "KTO",
            model,
            marked,
            tuner,
            self.arguments,
            {"max_length": None, "train_sampling_strategy": "sequential"},
            rows,
        )
        save_stage(context, model, tokenizer, head, metrics, tuner)
        trl_stage.leave(context, self)


def encoded(
    subject: PreferenceSubject,
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    longest: int | None,
    batch: int | None,
) -> list[dict[str, Any]]:
    """Rows with `prompt_ids`, `completion_ids` and `label`, shuffled once by the seed: KTO keeps one order for all
    epochs.

    With `batch`, each row also has the answer of its neighbour among so many rows as `KL_completion_ids`: to an
    answer that belongs to another prompt, the policy's log ratio estimates its KL to the reference (section 4.1 of
    the paper). No row is longer than the stage's `max_length`. Raises DataError where nothing is left.
    """
    import numpy as np

    from pipelines.data.completions import opening_of, parted, prompt_room, shortened, stops_of

    labelled = subject.labelled_rows(context, tokenizer)
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    opening = opening_of(tokenizer)
    rows: list[dict[str, Any]] = []
    for (prompt, answer), label in zip(
        parted(tokenizer, labelled.dialogues, stops_of(model)), labelled.labels or (), strict=True
    ):
        shortened_prompt = shortened(prompt, prompt_room(len(answer), limit, subject.max_prompt_length), opening)
        if shortened_prompt and (cut := answer[: limit - len(shortened_prompt)]):
            rows.append({"prompt_ids": shortened_prompt, "completion_ids": cut, "label": bool(label)})
    if not rows:
        raise DataError(f"no answer is left of the {len(labelled)} rows within {limit} tokens; raise max_length")
    if context.world.is_main and len(rows) < len(labelled):
        context.events.emit(
            "warning",
            message=f"{len(labelled) - len(rows)} of {len(labelled)} rows have no prompt or no answer within {limit} "
            "tokens and are left out",
        )
    order = np.random.default_rng([context.seed, 0x4B70]).permutation(len(rows))
    rows = [rows[place] for place in order.tolist()]
    if batch is not None:
        for start in range(0, len(rows), batch):
            together = rows[start : start + batch]
            for row, before in zip(together, [together[-1], *together[:-1]], strict=True):
                row["KL_completion_ids"] = list(before["completion_ids"])[: max(1, limit - len(row["prompt_ids"]))]
    return rows
