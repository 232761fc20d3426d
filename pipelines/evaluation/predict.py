"""A model's logits for labelled texts, in the order of the texts, each text seen once.

Texts are tokenised once and batched with texts of their own length, the longest first, so that little is padded and a
batch too large for the device fails at once. The batches do not depend on the number of processes: process r of n
computes batches r, r + n, r + 2n, …, and all of them receive every result, so one process and many give the same bits.
Always fp32, whatever the model was trained with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import DataError, ModelError
from pipelines.fields.positions import usable_positions
from pipelines.protocols import Rows, World

MAX_LENGTH = 128
"""Tokens a text, where no stage of the recipe says: what the GLUE results of Devlin et al. 2019 were computed with."""

Progress = Callable[[int, int], None]
"""`progress(done, total)`, in examples."""


def device() -> Any:
    """Where this process predicts: its own GPU, else Apple's, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def predict(
    model: Any,
    tokenizer: Any,
    rows: Rows,
    max_length: int,
    *,
    world: World | None = None,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
    device: Any = "cpu",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Logits (examples, outputs) of every row, on every process. Raises DataError without rows."""
    import torch

    from pipelines.data.encoding import collate, encode

    world = world or World()
    if len(rows) == 0:
        raise DataError("the evaluation split has no rows; raise max_eval_samples, or choose a split that has some")
    examples = encode(tokenizer, rows, max_length)
    batches = batched_by_length(examples.lengths.tolist(), batch_size)
    model = model.to(device=device, dtype=torch.float32).eval()
    mine: list[NDArray[np.float32]] = []
    done = 0
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            done += len(batch)
            if number % world.size != world.rank:
                continue
            inputs = collate(tokenizer, [examples[position] for position in batch])
            outputs = model(**{name: value.to(device) for name, value in inputs.items() if name != "labels"})
            mine.append(outputs.logits.float().cpu().numpy())
            if progress is not None:
                progress(done, len(rows))
    return _in_order(gather(mine), batches, len(rows))


def usable_length(model: Any, tokenizer: Any, wanted: int | None) -> int:
    """`wanted` tokens, or as many as the model has positions for and its tokenizer was made for."""
    limits = (wanted or MAX_LENGTH, usable_positions(model.config), tokenizer.model_max_length)
    return min(limit for limit in limits if isinstance(limit, int) and limit > 0)


def batched_by_length(lengths: list[int], batch_size: int) -> list[list[int]]:
    """Positions in batches of similar length, the longest first; equal lengths stay in order."""
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _in_order(by_rank: list[list[NDArray[np.float32]]], batches: list[list[int]], examples: int) -> NDArray[np.float32]:
    """Every process's batches, put back at the positions of their texts."""
    result: NDArray[np.float32] | None = None
    for number, batch in enumerate(batches):
        logits = by_rank[number % len(by_rank)][number // len(by_rank)]
        if logits.ndim != 2 or len(logits) != len(batch):
            raise ModelError(
                f"the model gives outputs of shape {logits.shape} for {len(batch)} texts, where a classifier gives "
                "(texts, outputs); evaluate a model with a sequence classification head"
            )
        if result is None:
            result = np.empty((examples, logits.shape[1]), dtype=np.float32)
        result[batch] = logits
    assert result is not None  # there is at least one row
    return result
