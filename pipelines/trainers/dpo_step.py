"""One step of preference optimisation with its reference, and how often the implicit reward tells the better answer.

A step reads both answers of every pair in one pass. The implicit reward is beta times the log ratio of policy and
reference (Rafailov et al. 2023, section 4), measured on pairs that the policy never learnt from. Held against it are
the length of the answers alone, in the direction that is right more often, and the likelihood that the reference gave
them before anything was learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from pipelines.core.interfaces import IGNORED, Context
from pipelines.metrics.statistics import interval_of_mean
from pipelines.models.log_probabilities import TokenLogProbabilities, sums, token_log_probabilities
from pipelines.objectives.losses import Meter
from pipelines.tasks.preference.scores import accuracy, negative_log_likelihood
from pipelines.trainers.dpo_losses import (
    PairLikelihoods,
    implicit_rewards,
    likelihood_weight,
    per_token_rewards,
    weighed,
)
from pipelines.trainers.dpo_settings import LIKELIHOOD, DPOArguments
from pipelines.trainers.reference import ReferenceModel, shares

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from pipelines.trainers.model_selection import Examples
    from pipelines.trainers.trainer import Collate, Example

PAIRS, CHOSEN, STORED = "pairs", "chosen_labels", "reference"
"""Keys of a batch: the items of the pairs' losses, those of the likelihood, the reference's numbers where they are
stored."""


@dataclass(frozen=True)
class PreferenceStep:
    """The loss of a batch of chosen and then rejected answers. `loss(model, inputs)` as the training loop wants it."""

    weights: Mapping[str, float]
    """Names of losses -> what each weighs."""
    arguments: DPOArguments
    reference: ReferenceModel | None
    """None where the batch brings the numbers, or no loss looks at them."""
    meter: Meter
    temperature: float = 1.0
    """Divides the logits of both."""

    @property
    def of_pairs(self) -> dict[str, float]:
        """The losses that are counted by pairs."""
        return {name: weight for name, weight in self.weights.items() if name != LIKELIHOOD}

    @property
    def label_names(self) -> dict[str, float]:
        """Parts of the loss with what they weigh: the pairs, and the tokens of the chosen answers where they are
        learnt too."""
        likelihood = likelihood_weight(self.weights)
        return {PAIRS: 1.0, **({CHOSEN: likelihood} if likelihood else {})}

    def collated(self, collate: Collate) -> Collate:
        """`collate`, with what the parts of the loss are counted by, and the stored numbers of the reference (2
        pairs,)."""

        def together(examples: list[Example]) -> dict[str, Tensor]:
            stored = [example.pop(STORED, None) for example in examples]
            batch = collate(examples)
            if stored[0] is not None:
                batch[STORED] = torch.from_numpy(np.stack(stored).T.reshape(-1))
            if CHOSEN in self.label_names:
                batch[CHOSEN] = batch["labels"][: len(examples)].clone()
            return batch

        return together

    def __call__(self, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """(sums over the pairs, and over the chosen answers' tokens (parts,); nothing)."""
        real = inputs[PAIRS] != IGNORED  # what only fills up a batch is no pair
        named = token_log_probabilities(model, inputs, temperature=self.temperature)
        pairs = compared(named, self.reference_answers(model, inputs))
        parts = [(weighed(pairs, self.arguments, self.of_pairs) * real).sum()]
        if CHOSEN in self.label_names:
            chosen = named.log_probabilities[: len(real)]
            parts.append(-(chosen * real[:, None]).sum())
        self.tell(model.training, pairs, real)
        return torch.stack(parts), ()

    def reference_answers(self, model: nn.Module, inputs: dict[str, Tensor], exact: bool = False) -> Tensor | None:
        """What the reference gives to every answer (2 pairs,), asked after the policy; None where there is none."""
        if STORED in inputs:
            return inputs[STORED]
        if self.reference is None:
            return None
        with self.reference.model_for(model, exact) as reference:
            return sums(token_log_probabilities(reference, inputs, temperature=self.temperature))[0]

    def tell(self, training: bool, pairs: PairLikelihoods, real: Tensor) -> None:
        """TRL's numbers: the implicit rewards of both answers, how far apart they are, and how often they are in
        order."""
        with torch.no_grad():
            chosen, rejected = implicit_rewards(pairs, self.arguments.beta, tuple(self.weights))
            self.meter.add(
                training,
                {
                    "rewards/chosen": chosen,
                    "rewards/rejected": rejected,
                    "rewards/accuracies": (chosen > rejected).float(),
                    "rewards/margins": chosen - rejected,
                    "logps/chosen": pairs.chosen,
                    "logps/rejected": pairs.rejected,
                },
                real,
            )


def compared(named: TokenLogProbabilities, reference: Tensor | None) -> PairLikelihoods:
    """The pairs of a pass over chosen and then rejected answers."""
    total, lengths = sums(named)
    return PairLikelihoods.of(total, lengths, reference)


BOOTSTRAP = 0xB007
"""The stream of random numbers that the intervals' pairs are drawn from."""


def ask(
    context: Context,
    model: PreTrainedModel,
    step: PreferenceStep,
    examples: Examples,
    collate: Collate,
    batch_size: int,
) -> dict[str, np.ndarray]:
    """What policy and reference say of every pair, each (pairs, 2) with the chosen answer first: `rewards`,
    `per_token` (the same per token, 0 where the losses do not compare them so), `reference` (its log-probabilities, 0
    without one) and `lengths` in tokens. The processes share the work."""
    model = extract_model_from_parallel(model, keep_fp32_wrapper=False)  # the loop made it compute in its precision
    device = next(model.parameters()).device
    order = sorted(
        range(context.world.rank, len(examples), context.world.size), key=lambda place: -int(examples.lengths[place])
    )
    answers = {name: np.zeros((len(examples), 2)) for name in ("rewards", "per_token", "reference", "lengths")}
    training = model.training
    model.eval()
    with torch.no_grad():  # in fp32: what is compared is a small difference of large sums
        for places in shares(order, len(examples), batch_size, context.world):
            asked = [dict(examples[place]) for place in places or [0]]
            batch = {name: value.to(device) for name, value in collate(asked).items()}
            named = token_log_probabilities(model, batch, temperature=step.temperature)
            pairs = compared(named, step.reference_answers(model, batch, exact=True))
            told = pairs, step.arguments.beta, tuple(step.weights)
            for name, both in (
                ("rewards", implicit_rewards(*told)),
                ("per_token", per_token_rewards(*told) or ()),
                ("reference", (pairs.reference_chosen, pairs.reference_rejected)),
                ("lengths", (pairs.chosen_length, pairs.rejected_length)),
            ):
                if not places or not both:
                    continue
                answers[name][places] = torch.stack([each.double() for each in both], dim=1).cpu().numpy()
    model.train(training)
    return {name: np.sum(context.gather(values), axis=0) for name, values in answers.items()}


def scores(
    answers: dict[str, np.ndarray], seed: int, characters: Sequence[tuple[int, int]] | None = None
) -> dict[str, float]:
    """The metrics of `ask`'s answers by their names in `metrics.json`, as fractions; `_low` and `_high` are the ends
    of 95 % bootstrap intervals over the pairs. `characters` are the lengths of the whole answers, where `ask` saw cut
    ones.

    `eval_over_length` is by how much the implicit reward is right more often, on the same pairs, than the better of
    two guessers: that the longer answer wins, and that the shorter one does.
    """
    rewards, lengths = (
        answers["rewards"],
        np.asarray(characters if characters is not None else answers["lengths"], dtype=np.float64),
    )
    right, longer = _right(rewards), _right(lengths)
    guessed = longer if longer.mean() >= 0.5 else 1 - longer
    scores = {
        "pairs": float(len(rewards)),
        "rewards/accuracies": accuracy(rewards),
        "rewards/chosen": float(rewards[:, 0].mean()),
        "rewards/rejected": float(rewards[:, 1].mean()),
        "rewards/margins": float((rewards[:, 0] - rewards[:, 1]).mean()),
        "rewards/nll": negative_log_likelihood(rewards),
        "longer_accuracy": accuracy(lengths),
        "shorter_accuracy": accuracy(-lengths),
        "over_length": float((right - guessed).mean()),
    }
    intervals = {"rewards/accuracies": right, "longer_accuracy": longer, "over_length": right - guessed}
    if answers["per_token"].any():
        scores["rewards/accuracies_per_token"] = accuracy(answers["per_token"])
        intervals["rewards/accuracies_per_token"] = _right(answers["per_token"])
    if answers["reference"].any():
        likelier = _right(answers["reference"])
        scores["reference_accuracy"] = float(likelier.mean())
        intervals["reference_accuracy"] = likelier
    for name, each in intervals.items():
        scores[f"{name}_low"], scores[f"{name}_high"] = interval_of_mean(each, [seed, BOOTSTRAP])
    return {f"eval_{name}": value for name, value in scores.items()}


def _right(both: np.ndarray) -> np.ndarray:
    """1 where the chosen answer has the higher number, a half where both have the same (pairs,)."""
    return np.asarray((both[:, 0] > both[:, 1]) + 0.5 * (both[:, 0] == both[:, 1]))
