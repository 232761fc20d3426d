"""Learning to prefer: a number for each answer, by which the better of two can be told.

Bradley & Terry 1952, "Rank analysis of incomplete block designs: the method of paired comparisons": one answer is
preferred to another with the probability σ(r_chosen - r_rejected). Stiennon et al. 2020, "Learning to summarize from
human feedback", section 3.4, arxiv.org/abs/2009.01325, take its negative logarithm as the loss of a scalar head. Both
sides of a pair stand in one batch, the chosen rows first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from pipelines.core.errors import DataError, IncompatibleError
from pipelines.core.interfaces import IGNORED
from pipelines.data.encoding import Columns
from pipelines.data.reward_inputs import RewardCollator, RewardInputFormat, encoded
from pipelines.models.read_places import text_alone
from pipelines.tasks.preference.rows import PreferenceRows
from pipelines.tasks.preference.task import ONE_TEXT, reads_pairs
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.data.reward_inputs import RewardInputFormat
    from pipelines.objectives.losses import Meter


SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class ScoredPairs:
    """Tokenised pairs, as columns. Those whose two sides are the same within the limit are not among them."""

    chosen: Columns
    rejected: Columns
    index: list[int]
    """Row numbers in the file."""
    margins: list[float] | None
    """By how much each chosen answer is better; None where that is not to be learnt."""
    probabilities: list[float] | None = None
    """How likely each chosen answer is the better one; None where that is not to be learnt."""
    truncated: int = 0
    """Pairs of which a side lost the beginning of its prompt or the end of its answer."""
    left_out: tuple[int, ...] = ()
    """Row numbers of the pairs whose sides are the same within the limit."""

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each pair's longer side."""
        return np.maximum(self.chosen.lengths, self.rejected.lengths)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {side: getattr(self, side)[position] for side in SIDES} | {
            "index": self.index[position]
        }
        beside = {"margin": self.margins, "probability": self.probabilities}
        return example | {name: column[position] for name, column in beside.items() if column is not None}

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> ScoredPairs:
        """The pairs at `positions`, in that order. Counts stay those of the whole."""
        places = np.asarray(positions, dtype=np.int64)
        margins, chances = (
            None if column is None else [column[at] for at in places.tolist()]
            for column in (self.margins, self.probabilities)
        )
        index = [self.index[at] for at in places.tolist()]
        return replace(
            self,
            chosen=self.chosen.select(places),
            rejected=self.rejected.select(places),
            index=index,
            margins=margins,
            probabilities=chances,
        )


def encode_scored_pairs(
    tokenizer: PreTrainedTokenizerBase,
    rows: PreferenceRows,
    reading: RewardInputFormat,
    stops: Sequence[int] = (),
    with_margins: bool = True,
    with_probabilities: bool = False,
    keep_all: bool = False,
) -> ScoredPairs:
    """Tokens of both sides of every pair. `keep_all` keeps those that are the same within the limit: they are scored
    as ties.

    Raises DataError where no pair is left.
    """
    (chosen, cut), (rejected, also_cut) = (
        encoded(tokenizer, side, reading, stops) for side in (rows.chosen, rows.rejected)
    )
    margins = list(rows.margins) if with_margins and rows.margins is not None else None
    chances = list(rows.probabilities) if with_probabilities and rows.probabilities is not None else None
    pairs = ScoredPairs(chosen, rejected, list(rows.index), margins, chances, int((cut | also_cut).sum()))
    if keep_all:
        return pairs
    places = [at for at in range(len(pairs)) if chosen.input_ids[at] != rejected.input_ids[at]]
    if not places and len(pairs):
        raise DataError(
            f"no pair of the {len(pairs)} rows is left: within {reading.max_length} tokens their answers do "
            "not differ; raise max_length"
        )
    if len(places) == len(pairs):
        return pairs
    missing = sorted(set(range(len(pairs))) - set(places))
    return replace(pairs.select(places), left_out=tuple(rows.index[at] for at in missing))


@dataclass(frozen=True)
class ScoredPairsCollator:
    """The collator: of B pairs 2B rows, first the chosen ones, then the rejected ones."""

    together: RewardCollator

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`labels` (B,), 0 as the first of the two is the better one; the rows (2B, length); `margin` and
        `probability` (B,) where there are such."""
        import torch

        rows = self.together([example[side] for side in SIDES for example in examples])
        batch = {"labels": torch.zeros(len(examples), dtype=torch.int64), **rows}
        beside = [name for name in ("margin", "probability") if name in examples[0]]
        return batch | {
            name: torch.tensor([example[name] for example in examples], dtype=torch.float32) for name in beside
        }


def bradley_terry(
    chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, smoothing: float | Tensor = 0.0
) -> Tensor:
    """-ln σ(chosen - rejected - margin) of each pair, in nats; all (pairs,).

    The margin asks for a distance of the scores where people were surer (Touvron et al. 2023, "Llama 2", section
    3.2.2, equation 2, arxiv.org/abs/2307.09288). With `smoothing` ε the preference is taken to be wrong with the
    probability ε: then it is (1 - ε) times the loss of the pair as it stands and ε times that of the pair turned
    round, as DPO's conservative variant. An ε of each pair (pairs,) is one minus a judge's probability: the
    cross-entropy with its soft labels (Lee et al. 2023, "RLAIF", section 2.1, arxiv.org/abs/2309.00267).
    """
    difference = chosen.float() - rejected.float()
    if margin is not None:
        difference = difference - margin.to(difference)
    loss = -functional.logsigmoid(difference)
    if isinstance(smoothing, Tensor) or smoothing:
        loss = (1 - smoothing) * loss - smoothing * functional.logsigmoid(-difference)
    return loss


def distance_from_zero(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(chosen + rejected)² of each pair (pairs,): what is added to the loss, times a coefficient, to centre the scores.

    Differences leave the level of the scores open. Eisenstein et al. 2023, "Helping or Herding? Reward Model
    Ensembles Mitigate but do not Eliminate Reward Hacking", section 2, arxiv.org/abs/2312.09244.
    """
    return (chosen.float() + rejected.float()) ** 2


class PreferenceTraining(TaskTraining):
    """The Bradley–Terry loss of pairs of answers."""

    def prepare(
        self,
        subject: Any,
        task: Any,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedReward:
        from pipelines.data.completions import stops_of
        from pipelines.data.encoding import few_lengths
        from pipelines.data.ragged import made_once
        from pipelines.data.reward_inputs import RewardCollator
        from pipelines.objectives.losses import Meter
        from pipelines.tasks.first_batch import tell_pairs

        def read() -> tuple[ScoredPairs, RewardInputFormat, Any]:
            rows = subject.preference_rows(context, tokenizer)
            reading = reading_of(subject, model.config, rows.chosen, longest)
            if subject.soft_labels and rows.probabilities is None:
                raise DataError(
                    "soft_labels learns how sure a judge was, but the rows have no column 'probability'; leave "
                    "it out, or add the column to every row"
                )
            stops = stops_of(model)
            margins = subject.use_margins and not subject.soft_labels
            examples = encode_scored_pairs(tokenizer, rows, reading, stops, margins, subject.soft_labels)
            tell_pairs(context, tokenizer, examples, rows, reading.max_length)
            return examples, reading, tokenizer.chat_template

        examples, reading, tokenizer.chat_template = made_once(context, subject.id, read)
        arguments = subject.arguments
        meter = Meter()
        loss: Any = partial(
            pair_loss,
            smoothing=arguments.label_smoothing,
            centring=arguments.center_rewards_coefficient or 0.0,
            meter=meter,
        )
        together = ScoredPairsCollator(RewardCollator.of(tokenizer, **few_lengths(reading.max_length)))
        return PreparedReward(
            examples, together, loss, LABELS, score=pair_score, metric="accuracy", reading=reading, meter=meter
        )


@dataclass(frozen=True)
class PreparedReward(PreparedTask):
    """What the loop needs, how the model reads its inputs, and the means of the scores while it learns."""

    reading: RewardInputFormat | None = None


def reading_of(
    subject: Any, config: PreTrainedConfig, dialogues: Iterable[Any], longest: int | None
) -> RewardInputFormat:
    """How a model of this config reads the pairs of a subject. Raises IncompatibleError where it cannot
    read them as it is told to."""
    from pipelines.data.reward_inputs import RewardInputFormat

    pair = reads_pairs({"model_type": config.model_type, **config.to_dict()})
    if pair and subject.chat_template is not None:
        raise IncompatibleError(f"chat_template {ONE_TEXT}; leave it out")
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    templated = any(each.templated for each in dialogues)
    return RewardInputFormat("pair" if pair else "text", limit, subject.max_prompt_length, templated and not pair)


def pair_loss(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    smoothing: float = 0.0,
    centring: float = 0.0,
    meter: Meter | None = None,
) -> tuple[Tensor, Any]:
    """The Bradley–Terry loss summed over the pairs (), and as `logits` the scores of both sides (pairs, 2); one pass
    reads both.

    `meter` is told, while the model learns, TRL's numbers: how often the chosen answer scores higher, by how much,
    and the mean score.
    """
    import torch

    inputs = dict(inputs)
    labels, margin, probability = inputs.pop("labels"), inputs.pop("margin", None), inputs.pop("probability", None)
    with text_alone(model, inputs):
        outputs = model(**inputs)
    chosen, rejected = outputs.logits.float().squeeze(-1).chunk(2)
    each = bradley_terry(chosen, rejected, margin, smoothing if probability is None else 1 - probability)
    if centring:
        each = each + centring * distance_from_zero(chosen, rejected)
    real = labels != IGNORED  # what only fills up a batch is no pair
    scores = torch.stack([chosen, rejected], dim=1)
    if meter is not None and model.training:
        difference = (chosen - rejected).detach()
        meter.add(True, {"accuracy": (difference > 0).float(), "margin": difference}, real)
        meter.add(True, {"mean_reward": scores}, real[:, None].expand_as(scores))
    return each.masked_fill(~real, 0.0).sum(), {"logits": scores}


def pair_score(scores: object, labels: object) -> dict[str, float]:
    """How well scores (pairs, 2) tell the better answer."""
    from pipelines.tasks.preference import scores as pair_scores

    return {"accuracy": pair_scores.accuracy(scores)}
