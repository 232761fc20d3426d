"""What one iteration of PPO learns from: the order of prompts, sampled completions, and a column for all that is
known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from pipelines.core.interfaces import IGNORED
from pipelines.data.ragged import padded_tensors
from pipelines.trainers.trainer import order


class PromptOrder(Sampler[int]):
    """Yields `draw * prompts + row`: the row to be asked, and a number that no other completion of the run has.

    An epoch asks every prompt once, in an order by (seed, epoch), and then the first ones of that order again until
    its last batch is full. A prompt that is asked twice gets two completions, for their draws differ. With fewer
    prompts than a batch has places each is asked several times.
    """

    def __init__(self, prompts: int, batch_size: int, seed: int) -> None:
        self.prompts = prompts
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return -(-self.prompts // self.batch_size) * self.batch_size

    def __iter__(self) -> Iterator[int]:
        rows = np.resize(order(self.seed, self.epoch, self.prompts, self.batch_size), len(self))
        draws = self.epoch * len(self) + np.arange(len(self))
        return iter((draws * self.prompts + rows).tolist())


class PromptDraws:
    """The prompts as a data set of the loop: `{row, draw}` behind each number of `PromptOrder`."""

    def __init__(self, prompts: int, batch_size: int) -> None:
        self.prompts = prompts
        self.places = -(-prompts // batch_size) * batch_size

    def __len__(self) -> int:
        return self.places

    def __getitem__(self, number: int) -> dict[str, int]:
        return {"row": number % self.prompts, "draw": number // self.prompts}


def together(examples: list[dict[str, int]]) -> dict[str, Any]:
    """`row` and `draw`, both (batch,)."""
    import torch

    return {name: torch.tensor([example[name] for example in examples]) for name in ("row", "draw")}


@dataclass(frozen=True)
class Layout:
    """How a prompt and its completion are shown to a model."""

    pad: int
    start: int | None
    """The token that a decoder beside an encoder begins with; None for a decoder alone."""

    def inputs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: Any
    ) -> dict[str, Tensor]:
        """A batch whose labels are the responses' tokens, each at the place from which it is named.

        A decoder reads both as one text; its last token is named, but never read. Filled up on the right, so that
        positions are what they are in any other text.
        """
        if self.start is None:
            ids, real = padded_tensors(
                [[*prompt, *response[:-1]] for prompt, response in zip(prompts, responses, strict=True)], self.pad
            )
            named = [
                [IGNORED] * (len(prompt) - 1) + list(response)
                for prompt, response in zip(prompts, responses, strict=True)
            ]
            inputs = {"input_ids": ids, "attention_mask": real, "labels": padded_tensors(named, IGNORED)[0]}
        else:
            ids, real = padded_tensors(prompts, self.pad)
            read = padded_tensors([[self.start, *response[:-1]] for response in responses], self.pad)[0]
            inputs = {
                "input_ids": ids,
                "attention_mask": real,
                "decoder_input_ids": read,
                "labels": padded_tensors(responses, IGNORED)[0],
            }
        return {name: value.to(device) for name, value in inputs.items()}


@dataclass
class Experience:
    """The completions of one iteration on one process. Tensors are (rows, length), on the device, 0 outside `mask`."""

    prompts: list[list[int]]
    responses: list[list[int]]
    mask: Tensor
    """Which columns belong to the completion, boolean."""
    old: Tensor
    """Log-probabilities of the tokens under the policy that sampled them."""
    values: Tensor
    """What the value function said before it learnt from them."""
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.prompts)

    def flat(self, column: Tensor, rows: Sequence[int]) -> Tensor:
        """The tokens of some rows, row after row (named,): the order in which a pass tells about them."""
        chosen = torch.as_tensor(list(rows), device=column.device)
        return column[chosen][self.mask[chosen]]

    def inputs(self, layout: Layout, rows: Sequence[int]) -> dict[str, Tensor]:
        """Some rows as a batch."""
        return layout.inputs(
            [self.prompts[row] for row in rows], [self.responses[row] for row in rows], self.mask.device
        )


def by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The positions in batches of `size` of similar lengths, the longest first: what does not fit is seen at once."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size].tolist()
