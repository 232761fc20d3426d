"""The value function: a number for each state, read off a transformer's last hidden states.

One linear layer, whatever the model. It begins at zero, as in Ziegler et al.'s code (Huang et al. 2023, "The N Implementation
Details of RLHF with PPO", policy training 2): the first advantages are then rewards and nothing else, and the first gradients do
not pull the shared body towards the noise of a random head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.objectives.losses import without_wrappers

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
            found: Tensor = self.value_head(hidden_states.float()).squeeze(-1)
        return found


class Critic:
    """A value function as it is saved: its head, and its body where that is not the policy's."""

    def __init__(self, head: ValueHead, body: Any = None) -> None:
        self.head = head
        self.body = body

    def save_pretrained(self, folder: str) -> None:
        """`value_head.safetensors`, and the body as a checkpoint in `body/`."""
        from safetensors.torch import save_file

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        save_file({name: weight.detach().cpu().contiguous() for name, weight in self.head.state_dict().items()}, str(place / WEIGHTS))
        about = {"hidden_size": self.head.value_head.in_features, "body": "the policy's" if self.body is None else "body"}
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
def last_hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """A list to which each pass through `model` appends its decoder's last hidden states (rows, length, dim).

    They are what the language-model head reads, before any head is told to look at some places only.
    """
    found: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        found.append(output[0])

    hook = without_wrappers(model).get_decoder().register_forward_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def hidden_size_of(model: Any) -> int:
    """The width of a model's last hidden states."""
    output = without_wrappers(model).get_output_embeddings()
    return int(output.weight.shape[1])
