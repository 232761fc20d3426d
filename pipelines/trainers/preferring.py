"""Learning to prefer: a number for each answer, by which the better of two can be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.errors import DataError, Misfit
from pipelines.fields.directions import looks_back_only
from pipelines.protocols import Head, HeadKind
from pipelines.trainers.lesson import LABELS, Lesson, Teacher

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.data.scored_texts import Reading
    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.meters import Meter

STAGES = ("reward", "dpo", "kto")
"""Stages that learn tasks of the kind `preference`."""


class Preferring(Teacher):
    """The Bradley–Terry loss of pairs of answers."""

    head_kind: ClassVar[HeadKind] = "reward"

    def mistakes(self, subject: Any, name: str, recipe: Recipe) -> Iterable[Found]:
        """Asked of the subjects of supervised stages alone."""
        yield ("task",), f"is of the kind preference, which the stages {', '.join(STAGES)} learn; write one of them instead"

    def head(self, subject: Any, task: Task) -> Head:
        return Head(self.head_kind)

    def columns(self, task: Task) -> tuple[str, ...]:
        return ()

    def texts(self, rows: Any) -> Iterator[str]:
        """Every message of every pair."""
        return (str(message["content"]) for side in (rows.chosen, rows.rejected) for each in side for message in each.messages)

    def prepare(self, subject: Any, task: Any, context: Context, model: Any, tokenizer: Any, longest: int | None) -> ScoringLesson:
        from pipelines.data.scored_pairs import ScoredTogether, encode_scored_pairs
        from pipelines.data.scored_texts import Together
        from pipelines.trainers.completing import stops_of
        from pipelines.trainers.meters import Meter
        from pipelines.trainers.own_arguments import split
        from pipelines.trainers.preference_look import tell_pairs
        from pipelines.trainers.reward import SETTINGS

        rows = subject.preference_rows(context, tokenizer)
        reading = reading_of(subject, model.config, rows.chosen, longest)
        if subject.soft_labels and rows.probabilities is None:
            raise DataError("soft_labels learns how sure a judge was, but the rows have no column 'probability'; leave it out, or add the column to every row")
        examples = encode_scored_pairs(tokenizer, rows, reading, stops_of(model), subject.use_margins, subject.soft_labels)
        tell_pairs(context, tokenizer, examples, rows, reading.max_length)
        own, _ = split(subject.arguments, SETTINGS)
        meter = Meter()
        loss: Any = partial(pair_loss, smoothing=own["label_smoothing"], centring=own["center_rewards_coefficient"] or 0.0, meter=meter)
        together = ScoredTogether(Together.of(tokenizer))
        return ScoringLesson(examples, together, loss, LABELS, score=pair_score, metric="accuracy", reading=reading, meter=meter)


@dataclass(frozen=True)
class ScoringLesson(Lesson):
    """A lesson that says how its model reads, and tells what the scores are like."""

    reading: Reading | None = None
    meter: Meter | None = None


def reading_of(subject: Any, config: Any, dialogues: Iterable[Any], longest: int | None) -> Reading:
    """How a model of this config reads the pairs of a subject. Raises Misfit where it cannot read them as it is told to."""
    from pipelines.data.scored_texts import Reading

    pair = reads_pairs({"model_type": config.model_type, **config.to_dict()})
    if pair and subject.chat_template is not None:
        raise Misfit(f"chat_template {ONE_TEXT}; leave it out")
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    templated = any(each.templated for each in dialogues)
    return Reading("pair" if pair else "text", limit, subject.max_prompt_length, templated and not pair)


ONE_TEXT = "joins a prompt and its answer to one text, but this model is no decoder and reads them as two"


def reads_pairs(words: Any) -> bool:
    """Whether a model of this resolved architecture reads a prompt and its answer as two texts: every one but decoders."""
    return not looks_back_only(words)


def pair_loss(
    model: Any, inputs: dict[str, Tensor], smoothing: float = 0.0, centring: float = 0.0, meter: Meter | None = None
) -> tuple[Tensor, Any]:
    """The Bradley–Terry loss summed over the pairs (), and as `logits` the scores of both sides (pairs, 2); one pass reads both.

    `meter` is told, while the model learns, TRL's numbers: how often the chosen answer scores higher, by how much, and the mean score.
    """
    import torch

    from pipelines.objectives.losses import IGNORED
    from pipelines.trainers.bradley_terry import bradley_terry, distance_from_zero

    inputs = dict(inputs)
    labels, margin, probability = inputs.pop("labels"), inputs.pop("margin", None), inputs.pop("probability", None)
    chosen, rejected = model(**inputs).logits.float().squeeze(-1).chunk(2)
    each = bradley_terry(chosen, rejected, margin, smoothing if probability is None else 1 - probability)
    if centring:
        each = each + centring * distance_from_zero(chosen, rejected)
    real = labels != IGNORED  # what only fills up a batch is no pair
    scores = torch.stack([chosen, rejected], dim=1)
    if meter is not None and model.training:
        difference = (chosen - rejected).detach()[real]
        meter.add(True, {"accuracy": (difference > 0).float(), "margin": difference, "mean_reward": scores.detach()[real]})
    return each.masked_fill(~real, 0.0).sum(), {"logits": scores}


def pair_score(scores: Any, labels: Any) -> dict[str, float]:
    """How well scores (pairs, 2) tell the better answer."""
    from pipelines.data import pair_scores

    return {"accuracy": pair_scores.accuracy(scores)}
