"""The order in which prompts are asked: every batch full, every completion with a number of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from pipelines.trainers.sampling import order


class PromptOrder(Sampler[int]):
    """Yields `draw * prompts + row`: the row to be asked, and a number that no other completion of the run has.

    An epoch asks every prompt once, in an order by (seed, epoch), and then the first ones of that order again until its last
    batch is full. A prompt that is asked twice gets two completions, for their draws differ. With fewer prompts than a batch
    has places each is asked several times.
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


class Asked:
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
