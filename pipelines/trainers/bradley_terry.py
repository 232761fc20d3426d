"""The loss of a reward model: how surprising the preferences are, given the scores.

Bradley & Terry 1952, "Rank analysis of incomplete block designs: the method of paired comparisons": one answer is preferred to
another with the probability σ(r_chosen - r_rejected). Stiennon et al. 2020, "Learning to summarize from human feedback",
section 3.4, arxiv.org/abs/2009.01325, take its negative logarithm as the loss of a scalar head.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, smoothing: float | Tensor = 0.0) -> Tensor:
    """-ln σ(chosen - rejected - margin) of each pair, in nats; all (pairs,).

    The margin asks for a distance of the scores where people were surer (Touvron et al. 2023, "Llama 2", section 3.2.2,
    equation 2, arxiv.org/abs/2307.09288). With `smoothing` ε the preference is taken to be wrong with the probability ε: then it
    is (1 - ε) times the loss of the pair as it stands and ε times that of the pair turned round, as DPO's conservative variant. An ε of each pair (pairs,) is one minus a judge's probability:
    the cross-entropy with its soft labels (Lee et al. 2023, "RLAIF", section 2.1, arxiv.org/abs/2309.00267).
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

    Differences leave the level of the scores open. Eisenstein et al. 2023, "Helping or Herding? Reward Model Ensembles Mitigate
    but do not Eliminate Reward Hacking", section 2, arxiv.org/abs/2312.09244.
    """
    return (chosen.float() + rejected.float()) ** 2
