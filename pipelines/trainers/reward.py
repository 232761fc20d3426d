"""The stage that trains a reward model: one number for an answer, learnt from which of two answers people prefer.

Stiennon et al. 2020, "Learning to summarize from human feedback", section 3.4, arxiv.org/abs/2009.01325: the body of
a model with a new head of one output, and the loss of Bradley and Terry. What it leaves is `model/` with
`reward.json`: how the model reads, the mean and spread of its scores, by which a policy's rewards are normalised, and
how well they tell the better of two answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.interfaces import Head
from pipelines.core.recipe import Stage
from pipelines.core.registry import TASK_KINDS, TUNERS
from pipelines.core.training_arguments import Fraction, OptionalNotNegative, Switch, TrainingArguments
from pipelines.tasks.preference.task import ONE_TEXT, reads_pairs
from pipelines.trainers import model_selection, tuning
from pipelines.trainers.preferences import KIND, PreferenceSubject

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedModel

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.data.reward_inputs import RewardInputFormat
    from pipelines.trainers.model_selection import Examples
    from pipelines.trainers.trainer import Collate


HEAD = Head("reward")


class RewardArguments(TrainingArguments):
    """transformers TrainingArguments by name, `global_batch_size`, and the numbers of the loss."""

    center_rewards_coefficient: OptionalNotNegative = None
    """The weight of a term that keeps the scores around zero, such as 0.01; TRL's name."""
    label_smoothing: Fraction = 0.0
    """The share of preferences that are taken to be wrong."""
    disable_dropout: Switch = True
    """Drop nothing while training; TRL's name and default."""


class Reward(PreferenceSubject, Stage):
    """Learn a score for answers from pairs of which one is better."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: reward, task: alpaca_eval_preferences}",
        "{stage: reward, id: scores, datasets: [{path: builtin/python-docs, name: preferences}, "
        "{path: builtin/python-docs, name: preferences, split: validation}], max_length: 64, "
        "max_prompt_length: 16, skip_bad_rows: true, use_margins: false, tuner: {name: lora, r: 2}, "
        "arguments: {center_rewards_coefficient: 0.01, label_smoothing: 0.1, disable_dropout: false, "
        "eval_strategy: epoch, learning_rate: 1e-3}}",
        "{stage: reward, task: {kind: preference, columns: {prompt: text}, train: builtin/python-docs, "
        "validation: 0.2, split_seed: 7}}",
    )
    stage: Literal["reward"] = "reward"
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    use_margins: bool = True
    """Ask for a distance of the scores where the rows say by how much an answer is better (`margin`, or two scores)."""
    soft_labels: bool = False
    """Learn how likely each chosen answer is the better one, where a judge has said so in the column `probability`,
    instead of taking it for certain. Margins are left out then: they would shift what the probability asks for."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which training ends; needs `eval_strategy` and
    `load_best_model_at_end`."""
    arguments: RewardArguments = RewardArguments()
    """transformers TrainingArguments by name, `global_batch_size`, and TRL's `center_rewards_coefficient` (0.01 keeps
    the scores around zero) and `disable_dropout` (true); `label_smoothing`, the share of preferences that are taken
    to be wrong."""

    trains: ClassVar[bool] = True
    scores: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from self.preference_mistakes(self.id, recipe)
        if self.soft_labels and "label_smoothing" in self.arguments.model_fields_set:
            yield (
                ("arguments", "label_smoothing"),
                "says how often preferences are wrong, which soft_labels says for each pair; leave one of the two out",
            )
        if self.soft_labels and self.use_margins and "use_margins" in self.model_fields_set:
            yield ("use_margins",), "is true, but soft_labels asks for a probability instead; leave one of the two out"
        yield from model_selection.issues(self.early_stopping_patience, self.arguments)
        if self.chat_template is not None and (words := recipe.model.words()) is not None and reads_pairs(words):
            yield ("chat_template",), f"{ONE_TEXT}; leave it out"
        yield from tuning.issues(self, recipe, HEAD.kind, self.max_length)

    def content(self, recipe: Recipe) -> dict[str, str]:
        return self.preference_content(self.id)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The model's stage, those that wrote the preferences, and those whose adapters the tuner builds on."""
        return tuple(dict.fromkeys((*super().reads(recipe), *self.preference_reads(), *self.tuner.stages)))

    def subjects(self) -> Mapping[str, Any]:
        """The task, where there is one to be measured on."""
        return {} if self.task is None else {self.id: self}

    def modules(self, recipe: Recipe) -> set[str]:
        return {TASK_KINDS.module(KIND)}

    def texts(self) -> Iterator[str]:
        """The texts of the training rows."""
        return self.preference_texts(self.id)

    def special_tokens(self) -> tuple[str, ...]:
        return self.needed_tokens()

    def cost(self, planning: Planning) -> StagePlan:
        return self.preference_cost(planning, Head("reward"), self.known_rows())

    def head_left(self) -> Head:
        return Head("reward")

    def run(self, context: Context) -> None:
        """Encode, train, look at the scores, save."""
        from pipelines.data.completions import padding_token
        from pipelines.models.log_probabilities import without_dropout
        from pipelines.tasks.preference.training import PreferenceTraining
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.trainer import fit

        tokenizer = context.open_tokenizer()
        model = tuning.opened(self, context, HEAD)
        if getattr(model.config, "pad_token_id", None) is None:
            # transformers' decoders look for the last token that is no padding
            model.config.pad_token_id = padding_token(tokenizer)
        if self.arguments.disable_dropout:
            without_dropout(model)
        lesson = PreferenceTraining().prepare(self, None, context, model, tokenizer, tuning.room_for_text(self, model))
        examples, selection, overrides = model_selection.divided(
            lesson.examples, self.arguments, lesson.metric, context.seed, self.max_eval_samples
        )
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = fit(
            context,
            model,
            tokenizer,
            examples,
            collate=lesson.collate,
            loss=lesson.loss,
            label_names=lesson.label_names,
            arguments=self.arguments,
            overrides=overrides,
            lengths=None if self.arguments.train_sampling_strategy == "random" else examples.lengths,
            selection=selection,
            score=lesson.score if selection is not None else None,
            early_stopping_patience=self.early_stopping_patience,
            tuner=tuner,
            meter=lesson.meter,
        )
        summary = describe(context, model, lesson.collate, examples, selection)
        save_stage(context, model, tokenizer, HEAD, metrics | summary.metrics, tuner)
        if context.world.is_main:
            assert lesson.reading is not None
            summary.write(context.folder / "model", lesson.reading)
        context.barrier()


SAMPLE = 256
"""Training pairs whose scores are looked at, drawn by the seed."""
BESIDE = ("labels", "margin", "probability")
"""What a batch says of its pairs, which the model does not read."""
BATCH = 32
"""Pairs at a time."""


@dataclass(frozen=True)
class ScoreSummary:
    """What was found."""

    mean: float
    """Of the scores of training answers, chosen and rejected together."""
    std: float
    """Their standard deviation."""
    train: dict[str, Any]
    held_out: dict[str, Any] | None
    """The same of the pairs set aside; None where there are none."""

    @property
    def metrics(self) -> dict[str, float]:
        """What `metrics.json` says."""
        metrics = {"reward_mean": self.mean, "reward_std": self.std, "train_accuracy": self.train["accuracy"]}
        if self.held_out is not None:
            metrics |= {f"eval_{name}": self.held_out[name] for name in ("accuracy", "nll", "calibration_error")}
        return metrics

    def write(self, folder: Path, reading: RewardInputFormat) -> None:
        """Put `reward.json` beside the weights."""
        from pipelines.data.reward_inputs import RewardSettings

        RewardSettings(reading, self.mean, self.std).write(
            folder, {"train": self.train, **({"held_out": self.held_out} if self.held_out else {})}
        )


def describe(
    context: Context, model: PreTrainedModel, collate: Collate, examples: Examples, selection: Examples | None
) -> ScoreSummary:
    """Score a sample of the training pairs, and the pairs set aside, in fp32. Every process sees the same."""
    import numpy as np

    drawn = np.sort(np.random.default_rng([context.seed, 0x5C03E]).permutation(len(examples))[:SAMPLE])
    train = scores_of(model, examples.select(drawn), collate)
    held_out = None if selection is None else figures(scores_of(model, selection, collate))
    std = float(train.std())
    return ScoreSummary(float(train.mean()), std if std > 0 else 1.0, figures(train), held_out)


def figures(scores: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy, calibration and histogram of scores (pairs, 2)."""
    from pipelines.tasks.preference import scores as pair_scores

    return {
        "pairs": len(scores),
        "accuracy": pair_scores.accuracy(scores),
        "nll": pair_scores.negative_log_likelihood(scores),
        "calibration_error": pair_scores.calibration_error(scores),
        "histogram": pair_scores.histogram(scores),
    }


def scores_of(model: PreTrainedModel, examples: Examples, collate: Collate) -> npt.NDArray[np.float64]:
    """Scores (pairs, 2) of every pair, chosen first, in the order of the examples."""
    import numpy as np
    import torch

    from pipelines.models.read_places import text_alone

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    scores = np.empty((len(examples), 2))
    order = np.argsort(-examples.lengths, kind="stable")
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            places: Sequence[int] = order[start : start + BATCH].tolist()
            batch = {
                name: value.to(device)
                for name, value in collate([examples[at] for at in places]).items()
                if name not in BESIDE
            }
            with text_alone(model, batch):
                logits = model(**batch).logits
            scores[places] = logits.float().squeeze(-1).cpu().numpy().reshape(2, -1).T
    model.train(was_training)
    return scores
