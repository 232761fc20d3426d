"""A policy and its value function as one module: what the optimizer sees, and what one pass tells about sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipelines.objectives.losses import IGNORED, logits_of, narrowing_is_exact, only_positions, without_wrappers
from pipelines.trainers.log_probabilities import entropies_of, log_probabilities_of
from pipelines.trainers.value_head import Critic, ValueHead, hidden_size_of, last_hidden_states


class Said(NamedTuple):
    """About every named token, row after row (named,)."""

    log_probabilities: Tensor
    """Of the token, under the policy."""
    values: Tensor
    """Of the state from which the token was chosen."""
    entropies: Tensor
    """Of the distribution that the token was chosen from, in nats."""


class ActorCritic(nn.Module):
    """A language model with a value head on its own last hidden states, or on those of a second body."""

    def __init__(self, policy: Any, critic: Any = None) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.head = ValueHead(hidden_size_of(policy if critic is None else critic))
        self.config = policy.config

    def forward(self, inputs: dict[str, Tensor], temperature: float = 1.0, learns_entropy: bool = False, values: bool = True) -> Said:
        """One pass. `inputs` as `token_log_probabilities` takes them; without `values` only the policy is asked.

        `learns_entropy` keeps the entropies' gradients; they cost a second softmax over the vocabulary.
        """
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        named = labels != IGNORED
        with last_hidden_states(self.policy) as seen:
            _, logits = logits_of(self.policy, inputs, named)  # (named, vocab)
        logits = logits.float() / temperature
        with torch.set_grad_enabled(learns_entropy and torch.is_grad_enabled()):
            entropies = entropies_of(logits if learns_entropy else logits.detach())
        said = log_probabilities_of(logits, labels[named])
        if not values:
            return Said(said, said.new_zeros(0), entropies)
        states = seen[-1] if self.critic is None else self._states(inputs, named)
        return Said(said, self.head(states[named]), entropies)

    def _states(self, inputs: dict[str, Tensor], named: Tensor) -> Tensor:
        """The critic's last hidden states (rows, length, dim), with as little of its language-model head as can be."""
        with last_hidden_states(self.critic) as seen:
            if narrowing_is_exact(self.critic, inputs, named):
                with only_positions(self.critic, torch.zeros_like(named)):
                    self.critic(**inputs)
            else:
                self.critic(**inputs)
        return seen[-1]

    def gradient_checkpointing_enable(self, **keywords: Any) -> None:
        """Recompute activations in the backward pass."""
        for model in (self.policy, self.critic):
            if model is not None:
                without_wrappers(model).gradient_checkpointing_enable(**keywords)

    def learnt(self) -> dict[str, Tensor]:
        """The weights that learn, each once: what a checkpoint needs beside the model that the stage read."""
        return {name: weight.detach().contiguous() for name, weight in self.named_parameters() if weight.requires_grad}

    def as_critic(self, tuner: Any) -> Critic:
        """The value function as it is saved."""
        body = self.critic
        if body is not None and tuner.adapts and tuner.merges:
            body = body.merge_and_unload()
        return Critic(self.head, body)


class OfThePolicy:
    """The tuner as the loop asks it about the whole: answers are about the policy, in the whole's names."""

    def __init__(self, tuner: Any, whole: ActorCritic) -> None:
        self.tuner = tuner
        self.whole = whole
        self.name = tuner.name

    def rates(self, model: Any) -> Mapping[str, float]:
        """What the learning rate is multiplied by; a critic of its own learns like the policy."""
        models = {"policy": self.whole.policy, "critic": self.whole.critic}
        asked = {place: self.tuner.rates(each) for place, each in models.items() if each is not None}
        return {f"{place}.{name}": rate for place, rates in asked.items() for name, rate in rates.items()}

    def penalty(self, model: Any) -> Any:
        """What the tuned policy adds to the loss."""
        return self.tuner.penalty(self.whole.policy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tuner, name)
