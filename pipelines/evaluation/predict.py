"""A model's logits for labelled texts, in the order of the texts, each text seen once.

Texts are tokenised once and batched with texts of their own length, the longest first, so that little is padded and a
batch too large for the device fails at once. The batches do not depend on the number of processes: process r of n
computes batches r, r + n, r + 2n, …, and all of them receive every result, so one process and many give the same bits.
Always fp32, whatever the model was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import DataError, ModelError
from pipelines.fields.positions import positions_for_text
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
    from pipelines.data.encoding import collate, encode

    examples = encode(tokenizer, rows, max_length)
    found = forward(
        model, examples, partial(collate, tokenizer), _logits,
        world=world, gather=gather, device=device, batch_size=batch_size, progress=progress,
    )  # fmt: skip
    return np.stack(found)


def _logits(outputs: Any, inputs: Any) -> NDArray[np.float32]:
    """A classifier's answers to a batch (batch, outputs)."""
    logits: NDArray[np.float32] = outputs.logits.float().cpu().numpy()
    if logits.ndim != 2 or len(logits) != len(inputs["input_ids"]):
        raise ModelError(
            f"the model gives outputs of shape {logits.shape} for {len(inputs['input_ids'])} texts, where a classifier gives "
            "(texts, outputs); evaluate a model with a sequence classification head"
        )
    return logits


def forward(
    model: Any,
    examples: Any,
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]],
    read: Callable[[Any, dict[str, Any]], Any],
    *,
    world: World | None = None,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
    device: Any = "cpu",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Any]:
    """What `read(outputs, batch)` keeps of each example, in the order of the examples, on every process.

    `examples` have `len`, `[position]` and `.lengths`. Raises DataError without examples.
    """
    import torch

    world = world or World()
    if len(examples) == 0:
        raise DataError("the evaluation split has no rows; raise max_eval_samples, or choose a split that has some")
    batches = batched_by_length(examples.lengths.tolist(), batch_size)
    model = model.to(device=device, dtype=torch.float32).eval()
    mine: list[Sequence[Any]] = []
    done = 0
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            done += len(batch)
            if number % world.size != world.rank:
                continue
            inputs = collate([examples[position] for position in batch])
            outputs = model(**{name: value.to(device) for name, value in inputs.items() if name != "labels"})
            mine.append(read(outputs, inputs))
            if progress is not None:
                progress(done, len(examples))
    by_rank = gather(mine)
    found: list[Any] = [None] * len(examples)
    for number, batch in enumerate(batches):
        for position, answer in zip(batch, by_rank[number % len(by_rank)][number // len(by_rank)], strict=True):
            found[position] = answer
    return found


def usable_length(model: Any, tokenizer: Any, wanted: int | None) -> int:
    """`wanted` tokens, or as many as the model has positions for and its tokenizer was made for."""
    limits = (wanted or MAX_LENGTH, positions_for_text(model), tokenizer.model_max_length)
    return min(limit for limit in limits if isinstance(limit, int) and limit > 0)


def batched_by_length(lengths: list[int], batch_size: int) -> list[list[int]]:
    """Positions in batches of similar length, the longest first; equal lengths stay in order."""
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
