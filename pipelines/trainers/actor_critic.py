"""A policy and its value function as one module: what the optimizer sees, and what one pass gives of sampled tokens.

The value function is one linear layer on a transformer's last hidden states, whatever the model. It begins at zero, as
in Ziegler et al.'s code (Huang et al. 2023, "The N Implementation Details of RLHF with PPO", policy training 2): the
first advantages are then rewards and nothing else, and the first gradients do not pull the shared body towards the
noise of a random head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from pipelines.core.interfaces import IGNORED
from pipelines.models.log_probabilities import distributions_of, narrowing_is_exact
from pipelines.models.read_places import only_positions, without_wrappers

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from pipelines.tuners.tuner import TunerBlock

WEIGHTS = "value_head.safetensors"


class ValueHead(nn.Module):
    """A hidden state (…, dim) to a value (…), in fp32 whatever the precision around it."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.value_head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        with torch.autocast(hidden_states.device.type, enabled=False):
            values: Tensor = self.value_head(hidden_states.float()).squeeze(-1)
        return values


class Critic:
    """A value function as it is saved: its head, and its body where that is not the policy's."""

    def __init__(self, head: ValueHead, body: PreTrainedModel = None) -> None:
        self.head = head
        self.body = body

    def save_pretrained(self, folder: str) -> None:
        """`value_head.safetensors`, and the body as a checkpoint in `body/`."""
        from safetensors.torch import save_file

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in self.head.state_dict().items()},
            str(place / WEIGHTS),
        )
        about = {
            "hidden_size": self.head.value_head.in_features,
            "body": "the policy's" if self.body is None else "body",
        }
        (place / "value_head.json").write_text(json.dumps(about))
        if self.body is not None:
            self.body.save_pretrained(str(place / "body"))


def saved_head(folder: Path) -> ValueHead:
    """The head that `Critic.save_pretrained` wrote into `folder`."""
    from safetensors.torch import load_file

    weights = load_file(str(folder / WEIGHTS))
    head = ValueHead(weights["value_head.weight"].shape[1])
    head.load_state_dict(weights)
    return head


@contextmanager
def last_hidden_states(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """A list to which each pass through `model` appends its decoder's last hidden states (rows, length, dim).

    They are what the language-model head reads, before any head is told to look at some places only. At places that
    have no label they may be zero: the last layer runs for few others.
    """
    states: list[Tensor] = []

    def keep(module: nn.Module, arguments: object, output: ModelOutput) -> None:
        states.append(output[0])

    hook = without_wrappers(model).get_decoder().register_forward_hook(keep)
    try:
        yield states
    finally:
        hook.remove()


def hidden_size_of(model: PreTrainedModel) -> int:
    """The width of a model's last hidden states."""
    output = without_wrappers(model).get_output_embeddings()
    return int(output.weight.shape[1])


class TokenOutputs(NamedTuple):
    """About every named token, row after row (named,)."""

    log_probabilities: Tensor
    """Of the token, under the policy."""
    values: Tensor
    """Of the state from which the token was chosen."""
    entropies: Tensor
    """Of the distribution that the token was chosen from, in nats."""


class ActorCritic(nn.Module):
    """A language model with a value head on its own last hidden states, or on those of a second body."""

    def __init__(self, policy: PreTrainedModel, critic: PreTrainedModel = None) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.head = ValueHead(hidden_size_of(policy if critic is None else critic))
        self.config = policy.config

    def parts_asked_alone(self) -> list[nn.Module]:
        """What is called by itself, by generation for one."""
        return [each for each in (self.policy, self.critic, self.head) if each is not None]

    def forward(
        self, inputs: dict[str, Tensor], temperature: float = 1.0, learns_entropy: bool = False, values: bool = True
    ) -> TokenOutputs:
        """One pass. `inputs` as `token_log_probabilities` takes them; without `values` only the policy is asked.

        `learns_entropy` keeps the entropies' gradients; they cost a second softmax over the vocabulary.
        """
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        named = labels != IGNORED
        with last_hidden_states(self.policy) as seen:
            _, said = distributions_of(self.policy, inputs, named)
        log_probabilities, entropies = said.log_probabilities(
            labels[named], temperature, with_entropies=True, learns_entropies=learns_entropy
        )
        assert entropies is not None
        if not values:
            return TokenOutputs(log_probabilities, log_probabilities.new_zeros(0), entropies)
        states = seen[-1] if self.critic is None else self._states(inputs, named)
        return TokenOutputs(log_probabilities, self.head(states[named]), entropies)

    def _states(self, inputs: dict[str, Tensor], named: Tensor) -> Tensor:
        """The critic's last hidden states (rows, length, dim), with as little of its language-model head as can be."""
        with last_hidden_states(self.critic) as seen:
            if narrowing_is_exact(self.critic, inputs, named):
                with only_positions(self.critic, torch.zeros_like(named)):
                    self.critic(**inputs)
            else:
                self.critic(**inputs)
        return seen[-1]

    def gradient_checkpointing_enable(self, **keywords: object) -> None:
        """Recompute activations in the backward pass."""
        for model in (self.policy, self.critic):
            if model is not None:
                without_wrappers(model).gradient_checkpointing_enable(**keywords)

    def learnt(self) -> dict[str, Tensor]:
        """The weights that learn, each once: what a checkpoint needs beside the model that the stage read."""
        return {name: weight.detach().contiguous() for name, weight in self.named_parameters() if weight.requires_grad}

    def as_critic(self, tuner: TunerBlock) -> Critic:
        """The value function as it is saved."""
        body = self.critic
        if body is not None and tuner.adapts and tuner.merges:
            body = body.merge_and_unload()
        return Critic(self.head, body)


class OfThePolicy:
    """The tuner as the loop asks it about the whole: answers are about the policy, in the whole's names."""

    def __init__(self, tuner: TunerBlock, whole: ActorCritic) -> None:
        self.tuner = tuner
        self.whole = whole
        self.name = tuner.name

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """What the learning rate is multiplied by; a critic of its own learns like the policy."""
        models = {"policy": self.whole.policy, "critic": self.whole.critic}
        rates_by_model = {place: self.tuner.rates(each) for place, each in models.items() if each is not None}
        return {f"{place}.{name}": rate for place, rates in rates_by_model.items() for name, rate in rates.items()}

    def penalty(self, model: PreTrainedModel) -> Tensor | None:
        """What the tuned policy adds to the loss."""
        return self.tuner.penalty(self.whole.policy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tuner, name)
