"""Losses over pairs of a chosen and a rejected answer, one number a pair, from log-probabilities alone.

No model and no reference is seen here: a decoder, an encoder-decoder and a test with numbers by hand share these
functions. With r = log pi(answer) - log pi_ref(answer), the log ratio, and h = r(chosen) - r(rejected):

    sigmoid       -log s(beta h)                       Rafailov et al. 2023, equation 7, arxiv.org/abs/2305.18290
                  with label_smoothing e conservative DPO, -(1 - e) log s(beta h) - e log s(-beta h):
                  Mitchell 2023, "A note on DPO with noisy preferences and relationship to IPO"
    sigmoid_norm  the same, each log ratio divided by the tokens of its answer
    robust        the sigmoid loss, unbiased where labels are flipped with probability e
                                                       Chowdhury et al. 2024, section 3.2, arxiv.org/abs/2403.00409
    hinge         max(0, 1 - beta h)                   SLiC: Zhao et al. 2023, arxiv.org/abs/2305.10425
                  with the log ratio for the likelihood and the margin 1 / beta
    ipo           (h / tokens - 1 / (2 beta))^2        Azar et al. 2023, equation 17, arxiv.org/abs/2310.12036
                  each log ratio divided by the tokens of its answer, as TRL does on its authors' word
    exo_pair      reverse KL to the smoothed labels    Ji et al. 2024, equation 16, arxiv.org/abs/2402.00856
    nca_pair      noise-contrastive alignment          Chen et al. 2024, arxiv.org/abs/2402.05369
    bco_pair      each answer against 0                Jung et al. 2024, arxiv.org/abs/2404.04656
                  without the moving shift
    sppo_hard     (r_w - 1/2beta)^2 + (r_l + 1/2beta)^2
                                                       Wu et al. 2024, equation 4.7, arxiv.org/abs/2405.00675
    apo_zero      1 - s(beta r_w) + s(beta r_l)        D'Oosterlinck et al. 2024, equation 7, arxiv.org/abs/2408.06266
    apo_down      s(beta r_w) + 1 - s(beta h)          the same, equation 8
    simpo         -log s(beta (mean log p_w - mean log p_l) - gamma), without a reference
                                                       Meng et al. 2024, equation 6, arxiv.org/abs/2405.14734
    orpo          -log s(log odds_w - log odds_l), odds of the mean log p, without a reference
                                                       Hong et al. 2024, equation 7, arxiv.org/abs/2403.07691
                  weighted by beta (their lambda), beside the likelihood of the chosen answer

`sft`, the likelihood of the chosen answers, is a sum over tokens and not over pairs: the training loop counts it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from pipelines.trainers.dpo_settings import LIKELIHOOD, PER_TOKEN, WITHOUT_REFERENCE, DPOArguments


@dataclass(frozen=True)
class PairLikelihoods:
    """Log-probabilities of both answers of every pair in nats, and their lengths in tokens; each (pairs,)."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @classmethod
    def of(cls, sums: Tensor, lengths: Tensor, reference: Tensor | None = None) -> PairLikelihoods:
        """From a batch of all chosen and then all rejected answers, each argument (2 pairs,). Without reference it
        is 0."""
        chosen, rejected = sums.chunk(2)
        chosen_length, rejected_length = lengths.chunk(2)
        against = torch.zeros_like(sums) if reference is None else reference.to(sums)
        reference_chosen, reference_rejected = against.chunk(2)
        return cls(chosen, rejected, reference_chosen, reference_rejected, chosen_length, rejected_length)

    @property
    def chosen_ratio(self) -> Tensor:
        """log pi / pi_ref of the chosen answers."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> Tensor:
        """log pi / pi_ref of the rejected answers."""
        return self.rejected - self.reference_rejected

    @property
    def difference(self) -> Tensor:
        """h: how much more the policy moved towards the chosen answer."""
        return self.chosen_ratio - self.rejected_ratio

    @property
    def mean_ratios(self) -> tuple[Tensor, Tensor]:
        """log pi / pi_ref per token of the chosen and of the rejected answers."""
        return self.chosen_ratio / self.chosen_length.clamp(min=1), self.rejected_ratio / self.rejected_length.clamp(
            min=1
        )

    @property
    def mean_difference(self) -> Tensor:
        """h with each log ratio divided by the tokens of its answer."""
        chosen, rejected = self.mean_ratios
        return chosen - rejected

    @property
    def mean_likelihoods(self) -> tuple[Tensor, Tensor]:
        """log p per token of the chosen and of the rejected answers, no reference taken off."""
        return self.chosen / self.chosen_length.clamp(min=1), self.rejected / self.rejected_length.clamp(min=1)


Loss = Callable[[PairLikelihoods, DPOArguments], Tensor]
"""Pairs -> their losses (pairs,)."""


def sigmoid(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Logistic loss of the difference; with label smoothing, conservative DPO."""
    return _smoothed(arguments.beta * pairs.difference, arguments.label_smoothing)


def sigmoid_norm(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """The same on log ratios per token, so that long answers weigh no more than short ones."""
    return _smoothed(arguments.beta * pairs.mean_difference, arguments.label_smoothing)


def robust(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """The sigmoid loss whose expectation under flipped labels is that under true ones."""
    logits, flipped = arguments.beta * pairs.difference, arguments.label_smoothing
    return (flipped * logsigmoid(-logits) - (1 - flipped) * logsigmoid(logits)) / (1 - 2 * flipped)


def hinge(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Nothing once the difference is 1 / beta."""
    return relu(1 - arguments.beta * pairs.difference)


def ipo(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Squared distance to a difference of 1 / (2 beta): it does not grow without end when a pair is certain."""
    return (pairs.mean_difference - 1 / (2 * arguments.beta)) ** 2


def exo_pair(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """KL of the policy's choice between both answers to the smoothed label."""
    logits = arguments.beta * pairs.difference
    wrong = logits.new_full((), arguments.label_smoothing)
    right, left = logsigmoid(logits), logsigmoid(-logits)
    return right.exp() * (right - torch.log1p(-wrong)) + left.exp() * (left - torch.log(wrong))


def nca_pair(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Each answer told from noise; the chosen one's likelihood is kept from falling."""
    chosen, rejected = arguments.beta * pairs.chosen_ratio, arguments.beta * pairs.rejected_ratio
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def bco_pair(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """A binary classifier of answers: chosen ones above 0, rejected ones below."""
    return -logsigmoid(arguments.beta * pairs.chosen_ratio) - logsigmoid(-arguments.beta * pairs.rejected_ratio)


def sppo_hard(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Self-play with probability 1 for the winner."""
    return (pairs.chosen_ratio - 0.5 / arguments.beta) ** 2 + (pairs.rejected_ratio + 0.5 / arguments.beta) ** 2


def apo_zero(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Chosen up and rejected down: for chosen answers better than the model's own."""
    return 1 - torch.sigmoid(arguments.beta * pairs.chosen_ratio) + torch.sigmoid(arguments.beta * pairs.rejected_ratio)


def apo_down(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Both down, the rejected more: for chosen answers worse than the model's own."""
    return torch.sigmoid(arguments.beta * pairs.chosen_ratio) + 1 - torch.sigmoid(arguments.beta * pairs.difference)


def simpo(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Logistic loss of the likelihoods per token, the chosen one to be better by gamma."""
    chosen, rejected = pairs.mean_likelihoods
    return _smoothed(arguments.beta * (chosen - rejected) - arguments.simpo_gamma, arguments.label_smoothing)


def orpo(pairs: PairLikelihoods, arguments: DPOArguments) -> Tensor:
    """Logistic loss of the ratio of odds, times beta. log odds p = log p - log(1 - p), p the likelihood per token."""
    chosen, rejected = pairs.mean_likelihoods
    return -arguments.beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


LOSSES: Mapping[str, Loss] = {
    loss.__name__: loss
    for loss in (
        *(sigmoid, sigmoid_norm, robust, hinge, ipo, exo_pair, nca_pair),
        *(bco_pair, sppo_hard, apo_zero, apo_down, simpo, orpo),
    )
}
"""Every loss of pairs by the name that recipes give it."""


def weighed(pairs: PairLikelihoods, arguments: DPOArguments, weights: Mapping[str, float]) -> Tensor:
    """Several losses of the same pairs, each times its weight (pairs,)."""
    total = torch.zeros_like(pairs.chosen)
    for name, weight in weights.items():
        total = total + weight * LOSSES[name](pairs, arguments)
    return total


def likelihood_weight(weights: Mapping[str, float]) -> float:
    """What the mean negative log-likelihood of the chosen answers' tokens weighs; ORPO brings it along (equation 6)."""
    return weights.get(LIKELIHOOD, 0.0) + weights.get("orpo", 0.0)


def implicit_rewards(pairs: PairLikelihoods, beta: float, names: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """What the policy says the answers are worth, chosen and rejected (pairs,): beta times the log ratio, up to a
    constant of the prompt (Rafailov et al. 2023, equation 5). Where no loss looks at a reference, beta times the
    likelihood per token (SimPO, equation 4; ORPO's own logs)."""
    if names and all(name in WITHOUT_REFERENCE for name in names):
        chosen, rejected = pairs.mean_likelihoods
        return beta * chosen, beta * rejected
    return beta * pairs.chosen_ratio, beta * pairs.rejected_ratio


def per_token_rewards(pairs: PairLikelihoods, beta: float, names: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """The same, each log ratio divided by the tokens of its answer, where every loss of pairs compares them so; None
    elsewhere."""
    compared_by = [name for name in names if name != LIKELIHOOD]
    if not compared_by or any(name not in PER_TOKEN for name in compared_by):
        return None
    chosen, rejected = pairs.mean_ratios
    return beta * chosen, beta * rejected


def _smoothed(logits: Tensor, flipped: float) -> Tensor:
    return -(1 - flipped) * logsigmoid(logits) - flipped * logsigmoid(-logits)


def _log_odds(likelihood: Tensor) -> Tensor:
    """log p - log(1 - p) for p = exp(likelihood) < 1, without loss of digits near 1."""
    return likelihood - torch.log(-torch.expm1(likelihood.clamp(max=-1e-7)))
