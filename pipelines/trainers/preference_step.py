"""One step of preference optimisation: both answers of every pair in one pass, the reference asked beside, means told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.objectives.losses import IGNORED
from pipelines.trainers.log_probabilities import Named, sums, token_log_probabilities
from pipelines.trainers.meters import Meter
from pipelines.trainers.preference_losses import Compared, Strength, implicit_rewards, likelihood_weight, weighed
from pipelines.trainers.preference_names import LIKELIHOOD
from pipelines.trainers.reference import Reference

PAIRS, CHOSEN, STORED = "pairs", "chosen_labels", "reference"
"""Keys of a batch: the items of the pairs' losses, those of the likelihood, the reference's numbers where they are stored."""


@dataclass(frozen=True)
class PreferenceStep:
    """The loss of a batch of chosen and then rejected answers. `loss(model, inputs)` as the training loop wants it."""

    weights: Mapping[str, float]
    """Names of losses -> what each weighs."""
    strength: Strength
    reference: Reference | None
    """None where the batch brings the numbers, or no loss looks at them."""
    meter: Meter

    @property
    def of_pairs(self) -> dict[str, float]:
        """The losses that are counted by pairs."""
        return {name: weight for name, weight in self.weights.items() if name != LIKELIHOOD}

    @property
    def label_names(self) -> dict[str, float]:
        """Parts of the loss with what they weigh: the pairs, and the tokens of the chosen answers where they are learnt too."""
        likelihood = likelihood_weight(self.weights)
        return {PAIRS: 1.0, **({CHOSEN: likelihood} if likelihood else {})}

    def collated(self, collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]]) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
        """`collate`, with what the parts of the loss are counted by, and the stored numbers of the reference (2 pairs,)."""

        def together(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
            stored = [example.pop(STORED, None) for example in examples]
            batch = collate(examples)
            if stored[0] is not None:
                batch[STORED] = torch.from_numpy(np.stack(stored).T.reshape(-1))
            if CHOSEN in self.label_names:
                batch[CHOSEN] = batch["labels"][: len(examples)].clone()
            return batch

        return together

    def __call__(self, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
        """(sums over the pairs, and over the chosen answers' tokens (parts,); nothing)."""
        real = inputs[PAIRS] != IGNORED  # what only fills up a batch is no pair
        named = token_log_probabilities(model, inputs)
        pairs = compared(named, self.asked(model, inputs))
        parts = [(weighed(pairs, self.strength, self.of_pairs) * real).sum()]
        if CHOSEN in self.label_names:
            chosen = named.log_probabilities[: len(real)]
            parts.append(-(chosen * real[:, None]).sum())
        self.tell(model.training, pairs, real)
        return torch.stack(parts), ()

    def asked(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor | None:
        """What the reference gives to every answer (2 pairs,), asked after the policy; None where there is none."""
        if STORED in inputs:
            return inputs[STORED]
        if self.reference is None:
            return None
        with self.reference.asked(model) as reference:
            return sums(token_log_probabilities(reference, inputs))[0]

    def tell(self, training: bool, pairs: Compared, real: Tensor) -> None:
        """TRL's numbers: the implicit rewards of both answers, how far apart they are, and how often they are in order."""
        with torch.no_grad():
            chosen, rejected = (each.detach()[real] for each in implicit_rewards(pairs, self.strength.beta, tuple(self.weights)))
            self.meter.add(
                training,
                {
                    "rewards/chosen": chosen,
                    "rewards/rejected": rejected,
                    "rewards/accuracies": (chosen > rejected).float(),
                    "rewards/margins": chosen - rejected,
                    "logps/chosen": pairs.chosen.detach()[real],
                    "logps/rejected": pairs.rejected.detach()[real],
                },
            )


def compared(named: Named, reference: Tensor | None) -> Compared:
    """The pairs of a pass over chosen and then rejected answers."""
    total, lengths = sums(named)
    return Compared.of(total, lengths, reference)
