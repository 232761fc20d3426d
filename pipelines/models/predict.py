"""A model's outputs for batches of examples, on all processes, each example seen once, with progress events.

Examples are batched with others of their own length, the longest first, so that little is padded and a batch too large
for the device fails at once. As many tokens are handed over at a time as the longest batch has, on a processor no more
than its caches hold: what short texts cost is the next batch. A processor gets fewer of long texts, so that their
memory stays where it is (`core.costs.TENSOR_KEPT`). The batches do not depend on the number of processes: process r of
n computes batches r, r + n, r + 2n, …, and all of them receive every result, so one process and many give the same
bits. In fp32, whatever the model was trained with, unless bf16 is asked for: what products and norms give is then
rounded to it (`models.packed_linear`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.core.costs import rows_on_cpu
from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Rows, World
from pipelines.core.model_types import positions_for_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput

    from pipelines.core.interfaces import Context


MAX_LENGTH = 128
"""Tokens a text, where no stage of the recipe says: what the GLUE results of Devlin et al. 2019 were computed with."""

Progress = Callable[[int, int], None]
"""`progress(done, total)`, in examples."""
Precision = Literal["no", "bf16"]


class InferenceOptions(TypedDict, total=False):
    """How a model is asked: what every way of asking takes by name."""

    world: World | None
    """Which process of how many this is. Default: the only one."""
    gather: Callable[[Any], list[Any]]
    """Gives every process what each of them has, by rank."""
    device: torch.device | str
    """Where the model computes. Default: the CPU."""
    batch_size: int
    """Examples at a time. Default: 32."""
    progress: Progress | None
    precision: Precision
    """Of matrix products. Default: fp32."""


def device() -> torch.device:
    """Where this process predicts: its own GPU, else Apple's, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    **running: Unpack[InferenceOptions],
) -> NDArray[np.float32]:
    """Logits (examples, outputs) of every row, on every process. Raises DataError without rows."""
    from pipelines.data.encoding import collate, encode

    examples = encode(tokenizer, rows, max_length)
    return np.stack(forward(model, examples, partial(collate, tokenizer), _logits, head_alone=True, **running))


def _logits(outputs: ModelOutput, inputs: Mapping[str, Tensor]) -> NDArray[np.float32]:
    """A classifier's answers to a batch (batch, outputs)."""
    logits: NDArray[np.float32] = outputs.logits.float().cpu().numpy()
    if logits.ndim != 2 or len(logits) != len(inputs["input_ids"]):
        raise ModelError(
            f"the model gives outputs of shape {logits.shape} for {len(inputs['input_ids'])} texts, where a "
            "classifier gives "
            "(texts, outputs); evaluate a model with a sequence classification head"
        )
    return logits


def forward(
    model: PreTrainedModel,
    examples: Any,
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
    read: Callable[[ModelOutput, dict[str, Tensor]], Sequence[Any] | NDArray[np.generic]],
    head_alone: bool = False,
    **running: Unpack[InferenceOptions],
) -> list[Any]:
    """What `read(outputs, batch)` keeps of each example, in the order of the examples, on every process.

    With `head_alone` it keeps nothing of the hidden states of the last layer.
    `examples` have `len`, `[position]` and `.lengths`. Raises DataError without examples.
    """

    from pipelines.models.read_places import text_alone

    def answer(positions: list[int], device: torch.device | str) -> Sequence[Any] | NDArray[np.generic]:
        inputs = collate([examples[position] for position in positions])
        given = {name: value.to(device) for name, value in inputs.items() if name != "labels"}
        with text_alone(model, given) if head_alone else nullcontext():
            outputs = model(**given)
        return read(outputs, inputs)

    sequences = getattr(examples, "sequences", 1)
    return answers(model, examples.lengths.tolist(), answer, fills=True, sequences=sequences, **running)


def answers(
    model: PreTrainedModel,
    lengths: list[int],
    answer: Callable[[list[int], torch.device | str], Sequence[Any] | NDArray[np.generic]],
    *,
    fills: bool = False,
    sequences: int = 1,
    world: World | None = None,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
    device: torch.device | str = "cpu",
    batch_size: int = 32,
    progress: Progress | None = None,
    precision: Precision = "no",
) -> list[Any]:
    """What `answer(positions, device)` finds of each example, in the order of the examples, on every process.

    It is asked batch by batch, without gradients, while the model lies on the device in fp32. `lengths` are the
    tokens of each of an example's `sequences`; with `fills` batches of shorter ones have more examples, and on a
    processor those of long ones have fewer: see `batched_by_length`. Raises DataError without examples.
    """
    import torch

    from pipelines.models.attention_by_size import attention_by_size
    from pipelines.models.packed_linear import packed

    world = world or World()
    if not lengths:
        raise DataError("the evaluation split has no rows; raise max_eval_samples, or choose a split that has some")
    on_cpu = torch.device(device).type == "cpu"
    fill = 0.0 if not fills else FILLED_ON_CPU / sequences if on_cpu else math.inf
    most = rows_at_once(model, precision == "bf16") if on_cpu and len(lengths) > 1 else None
    batches = batched_by_length(lengths, batch_size, fill, None if most is None else lambda n: most(n) // sequences)
    if not _is_ready(model, torch.device(device)):
        model.to(device=device, dtype=torch.float32).eval()
    mine: list[Sequence[Any] | NDArray[np.generic]] = []
    done = 0
    rounded = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16")
    with torch.inference_mode(), rounded, packed(model, sum(lengths) * sequences), attention_by_size(model):
        for number, batch in enumerate(batches):
            done += len(batch)
            if number % world.size != world.rank:
                continue
            mine.append(answer(batch, device))
            if progress is not None:
                progress(done, len(lengths))
    by_rank = gather(mine)
    outputs: list[Any] = [None] * len(lengths)
    for number, batch in enumerate(batches):
        for position, each in zip(batch, by_rank[number % len(by_rank)][number // len(by_rank)], strict=True):
            outputs[position] = each
    return outputs


def _is_ready(model: nn.Module, device: torch.device) -> bool:
    """Whether the model lies on the device in fp32, in evaluation mode, so that it need not be moved."""
    import torch

    for module in model.modules():
        weights = (each for each in (*module._parameters.values(), *module._buffers.values()) if each is not None)
        if module.training or any(
            each.device != device or (each.is_floating_point() and each.dtype is not torch.float32) for each in weights
        ):
            return False
    return True


def usable_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, wanted: int | None) -> int:
    """`wanted` tokens, or as many as the model has positions for and its tokenizer was made for."""
    limits = (wanted or MAX_LENGTH, positions_for_text(model), tokenizer.model_max_length)
    return min(limit for limit in limits if isinstance(limit, int) and limit > 0)


def rows_at_once(model: nn.Module, mixed: bool) -> Callable[[int], int] | None:
    """How many sequences of so many tokens a processor computes at once (`core.costs.rows_on_cpu`), `mixed` saying
    whether in 16 bits; None for a model without attention."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    config = getattr(model, "config", None)
    if not (heads := getattr(config, "num_attention_heads", None)):
        return None
    layers = (part.weight.shape for part in model.modules() if isinstance(part, nn.Linear | Conv1D))
    vocabulary = getattr(config, "vocab_size", None)  # whose logits are taken in chunks, or of few places
    widest = max((max(shape) for shape in layers if vocabulary not in shape), default=1)
    return lambda length: rows_on_cpu(length, widest, heads, mixed)


FILLED_ON_CPU = 2048
"""Tokens up to which a batch of short texts is filled up on a processor."""


def batched_by_length(
    lengths: list[int], batch_size: int, fill: float = 0, most: Callable[[int], int] | None = None
) -> list[list[int]]:
    """Positions in batches of similar length, the longest first; equal lengths stay in order. The first batch has
    `batch_size`, and so have the others, or as many as leave them no larger than the first, and than `fill` tokens,
    when they are padded. None has more than `most` of its longest length."""
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    tokens = int(min(fill, batch_size * lengths[order[0]])) if order else 0
    batches, start = [], 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = max(batch_size, tokens // longest)
        if most is not None:
            rows = max(1, min(rows, most(longest)))
        batches.append(order[start : start + rows])
        start += rows
    return batches


EVERY = 0.5
"""Seconds between two events."""


def progress_events(context: Context, what: str) -> Progress | None:
    """A `progress(done, total)` that emits `progress` events; None on the processes that write none."""
    if not context.world.is_main:
        return None
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= EVERY:
            last = now
            context.events.emit("progress", step=done, total=total, what=what)

    return progress
