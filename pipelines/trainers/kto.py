"""The stage that learns from single answers which are good or bad.

Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", arxiv.org/abs/2402.01306: no pairs
are needed, only whether an answer is wanted; losses weigh more than gains of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.errors import DataError
from pipelines.core.recipe import Stage
from pipelines.core.registry import TUNERS
from pipelines.core.training_arguments import Accepts, NotNegative, Positive, Switch, TrainingArguments, choice
from pipelines.tasks.preference.rows import LABELLED
from pipelines.trainers import dpo_settings, model_selection, tuning
from pipelines.trainers.preferences import PreferenceSubject, limits

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.preference.pairs import PreferenceCollator
    from pipelines.tasks.preference.rows import LabelledRows
    from pipelines.trainers.kto_step import LabelledExamples


WITHOUT_KL = "apo_zero_unpaired"


class KTOArguments(TrainingArguments):
    """transformers TrainingArguments by name, `global_batch_size`, and KTO's own numbers."""

    beta: Positive = 0.1
    """How firmly the policy is held to its reference."""
    loss_type: Annotated[str, Accepts(choice("kto", WITHOUT_KL))] = "kto"
    """The loss."""
    desirable_weight: NotNegative = 1.0
    """What a wanted answer weighs."""
    undesirable_weight: NotNegative = 1.0
    """What an unwanted answer weighs."""
    temperature: Annotated[float | None, Accepts("float", above=0)] = Field(None, validate_default=False)
    """Divides the logits of policy and reference, so that what learns is the policy that samples. Default: the
    temperature at which the feedback that is learnt was sampled, 1 for other answers."""
    precompute_ref_log_probs: Switch = False
    """Ask the reference once, before training."""
    precompute_ref_batch_size: Annotated[int | None, Accepts("int", at_least=1)] = Field(None, validate_default=False)
    """Answers at a time when the reference is asked beforehand. Default: `per_device_train_batch_size`."""
    disable_dropout: Switch = True
    """Drop nothing while training."""

    @property
    def needs_divergence(self) -> bool:
        """Whether the loss looks at how far the policy has gone from its reference."""
        return self.loss_type != WITHOUT_KL


class KTO(PreferenceSubject, Stage):
    """Make wanted answers likelier and unwanted ones less likely."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: kto, from: text, task: alpaca_eval_preferences}",
        "{stage: kto, id: single, from: text, datasets: [{path: builtin/python-docs, name: preferences}], "
        "max_length: 64, tuner: lora, early_stopping_patience: 2, arguments: {beta: 0.2, desirable_weight: 1.5, "
        "undesirable_weight: 0.5, temperature: 0.7, loss_type: apo_zero_unpaired, precompute_ref_log_probs: true, "
        "precompute_ref_batch_size: 4, disable_dropout: false, eval_strategy: epoch, load_best_model_at_end: true}}",
    )
    stage: Literal["kto"] = "kto"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and
    `load_best_model_at_end`."""
    arguments: KTOArguments = KTOArguments()
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's `beta` (0.1), `loss_type` (kto),
    `desirable_weight`, `undesirable_weight`, `precompute_ref_log_probs`, `precompute_ref_batch_size` and
    `disable_dropout` (true); besides `temperature`, at which the policy is sampled."""

    trains: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from self.preference_mistakes(self.id, recipe)
        yield from tuning.policy_issues(self, recipe)
        yield from tuning.issues(self, recipe, tuning.head_kind(self, recipe), self.max_length)
        yield from dpo_settings.temperature_issues(self, recipe)
        yield from model_selection.issues(self.early_stopping_patience, self.arguments)
        if self.arguments.precompute_ref_batch_size and not self.arguments.precompute_ref_log_probs:
            yield ("arguments", "precompute_ref_batch_size"), "is for precompute_ref_log_probs: true; leave it out"

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.preference_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy's stage, those that wrote the preferences, and those whose adapters the tuner builds on."""
        return tuple(dict.fromkeys((*super().reads(recipe), *self.preference_reads(), *self.tuner.stages)))

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.preference_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return self.needed_tokens()

    def cost(self, planning: Planning) -> StagePlan:
        """Beside its own pass an answer costs those without gradient: the reference's, and for the KL the policy's
        and the reference's once more."""
        rows, arguments = self.known_rows(), self.arguments
        single = self.task is not None and self.resolved(self.id).format == LABELLED
        asked, divergence = not arguments.precompute_ref_log_probs, arguments.needs_divergence
        passes = {"of the reference": int(asked), "for the KL": int(divergence) * (1 + int(asked))}
        told = " and ".join(f"{count} {what}" for what, count in passes.items() if count)
        note = (
            "a row is counted as one answer"
            if single
            else f"a row is counted as a pair, so two answers, unless format: {LABELLED} says that it is one"
        ) + f", and an answer with passes without gradient: {told}" * bool(told)
        return self.preference_cost(
            planning,
            tuning.planned_head(self, planning.recipe),
            None if rows is None else rows if single else 2 * rows,
            sequences=1,
            forwards=sum(passes.values()),
            copies=asked and not self.tuner.keeps_base,
            note=note,
        )

    def run(self, context: Context) -> None:
        """Encode, train, save."""
        from pipelines.models.log_probabilities import without_dropout
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.kto_step import AnswerStep
        from pipelines.trainers.reference import held_to
        from pipelines.trainers.trainer import fit

        arguments, tokenizer = self.arguments, context.open_tokenizer()
        model, head = tuning.opened_policy(self, context)
        if arguments.disable_dropout:
            without_dropout(model)
        examples, together = answers_for(self, context, model, tokenizer, tuning.room_for_text(self, model))
        temperature = arguments.temperature or next(iter(dpo_settings.sampled_at(self, context.recipe)), 1.0)
        held = held_to(context, model, self.tuner, arguments, together, examples, temperature=temperature)
        step = AnswerStep(arguments, held.reference, context, temperature)
        asked, selection, overrides = model_selection.divided(
            held.examples, arguments, "loss", context.seed, self.max_eval_samples
        )
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = fit(
            context,
            model,
            tokenizer,
            asked,
            collate=step.collated(together),
            loss=step,
            label_names=step.label_names,
            arguments=arguments,
            overrides=overrides,
            lengths=None if arguments.train_sampling_strategy == "random" else asked.lengths,
            selection=selection,
            early_stopping_patience=self.early_stopping_patience,
            tuner=tuner,
            meter=step.meter,
            beside_reference=True,
        )
        save_stage(context, model, tokenizer, head, metrics, tuner)


def answers_for(
    subject: PreferenceSubject,
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    longest: int | None,
) -> tuple[LabelledExamples, PreferenceCollator]:
    """(the answers, each beside one of another prompt; their collator), for a model that names tokens.

    No row is longer than the stage's `max_length`, or than `longest`. Prompts are cut from their beginning, answers
    from their end, and those of other prompts to what the own prompt leaves. Raises DataError where nothing is left.
    """
    from pipelines.data.completions import padding_token
    from pipelines.data.ragged import made_once
    from pipelines.models.checkpoint import start_token
    from pipelines.tasks.preference.pairs import PreferenceCollator

    both = limits(subject, model, longest)[0]
    examples, tokenizer.chat_template = made_once(
        context,
        "answers",
        lambda: (_encoded(subject, context, model, tokenizer, longest), tokenizer.chat_template),
    )
    start = start_token(model, tokenizer) if both else None
    return examples, PreferenceCollator(padding_token(tokenizer), start)


def _encoded(
    subject: PreferenceSubject,
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    longest: int | None,
) -> LabelledExamples:
    """The answers of `answers_for`."""
    import numpy as np

    from pipelines.core.interfaces import IGNORED
    from pipelines.data.completions import stops_of
    from pipelines.data.ragged import Ragged
    from pipelines.tasks.preference.pairs import SIDES, PreferencePairs
    from pipelines.trainers.kto_step import LabelledExamples

    labelled = subject.labelled_rows(context, tokenizer)
    both, limit, prompt_limit = limits(subject, model, longest)
    split = _as_targets if both else _as_continuations
    rows = split(tokenizer, labelled, limit, prompt_limit, stops_of(model))
    if not rows:
        raise DataError(f"no answer is left of the {len(labelled)} rows within {limit} tokens; raise max_length")
    if context.world.is_main and len(rows) < len(labelled):
        context.events.emit(
            "warning",
            message=f"{len(labelled) - len(rows)} of {len(labelled)} rows have no prompt or no answer within {limit} "
            "tokens and are left out",
        )
    places, prompts, answers = zip(*rows, strict=True)
    partners = others(np.random.default_rng([context.seed, 0x4B70]).permutation(len(rows)).tolist(), prompts)
    columns: dict[str, list[list[int]]] = {}
    for side, texts in zip(SIDES, (answers, [answers[other] for other in partners]), strict=True):
        before = [[] if both else prompt for prompt in prompts]  # what an encoder-decoder reads is no part of the row
        cut = [text[: limit - len(prompt)] for prompt, text in zip(before, texts, strict=True)]
        columns[side] = [[*prompt, *text] for prompt, text in zip(before, cut, strict=True)]
        columns[f"{side}_labels"] = [[IGNORED] * len(prompt) + text for prompt, text in zip(before, cut, strict=True)]
    sizes = [max(map(len, both_rows)) for both_rows in zip(*(columns[side] for side in SIDES), strict=True)]
    lengths = [size + both * len(prompt) for size, prompt in zip(sizes, prompts, strict=True)]
    pairs = PreferencePairs(
        **{name: Ragged.of(column) for name, column in columns.items()},
        sources=Ragged.of(prompts) if both else None,
        margins=None,
        index=[labelled.index[place] for place in places],
        lengths=np.asarray(lengths, dtype=np.int64),
        truncated=0,
        left_out=(),
    )
    wanted = np.asarray([bool((labelled.labels or ())[place]) for place in places])
    return LabelledExamples(pairs, wanted)


Row = tuple[int, list[int], list[int]]
"""Its place among those that were read, the tokens of the prompt and those of the answer."""


def _as_continuations(
    tokenizer: PreTrainedTokenizerBase,
    labelled: LabelledRows,
    limit: int,
    prompt_limit: int | None,
    stops: Sequence[int],
) -> list[Row]:
    from pipelines.data.completions import opening_of, parted, prompt_room, shortened

    opening, rows = opening_of(tokenizer), []
    for place, (prompt, answer) in enumerate(parted(tokenizer, labelled.dialogues, stops)):
        kept = shortened(prompt, prompt_room(len(answer), limit, prompt_limit), opening)
        if kept and (cut := answer[: limit - len(kept)]):
            rows.append((place, kept, cut))
    return rows


def _as_targets(
    tokenizer: PreTrainedTokenizerBase,
    labelled: LabelledRows,
    limit: int,
    prompt_limit: int | None,
    stops: Sequence[int],
) -> list[Row]:
    from pipelines.data.completions import unended
    from pipelines.data.encoding import encode_texts
    from pipelines.data.packing import end_of_text

    sources, _ = encode_texts(tokenizer, labelled.texts, prompt_limit or limit, "text")
    targets, _ = encode_texts(tokenizer, [each.completion for each in labelled.dialogues], limit, "text_target")
    ends = (end_of_text(tokenizer), *stops)
    answers = (unended(ids, dialogue, ends) for ids, dialogue in zip(targets, labelled.dialogues, strict=True))
    rows = enumerate(zip(sources, answers, strict=True))
    return [(place, source, answer) for place, (source, answer) in rows if source and answer]


def others(order: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """For each row the next one in `order`, a permutation read as a circle, that has another prompt; the next one
    where all prompts are the same."""
    kinds = [tuple(each) for each in prompts]
    differ = len(set(kinds)) > 1
    partners = list(order)
    for at, place in enumerate(order):
        after = (order[(at + step) % len(order)] for step in range(1, len(order) + 1))
        partners[place] = next(each for each in after if not differ or kinds[each] != kinds[place])
    return partners
