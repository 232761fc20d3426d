"""How likely a language model goes on with each of a few labels, such as A and B, or the numbers 1 to 10.

A label is written in more than one way (with and without a space before it), and a way may be several tokens: the
probability of a label is the sum over its ways, that of a way the product over its tokens. A way that goes on as
another label does, as 1 goes on to 10, counts without what goes on. Logits are computed at the last places only.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.core.errors import ModelError
from pipelines.data.ragged import padded_tensors
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.packed_linear import packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Way = tuple[int, ...]


@dataclass(frozen=True)
class LabelQuery:
    """One row: what the model reads, and what it has written behind it."""

    prompt: Sequence[int]
    written: Sequence[int] = ()
    """For an encoder-decoder what its decoder has written; a decoder reads it behind the prompt."""

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.written)


def ways_of(tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]) -> list[tuple[Way, ...]]:
    """The token sequences that each label may be written as. Raises ModelError where the tokenizer cannot tell
    labels apart."""
    label_ways: list[tuple[Way, ...]] = []
    for label in labels:
        ways = {tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (label, f" {label}")}
        label_ways.append(tuple(sorted(way for way in ways if way and tokenizer.unk_token_id not in way)))
    everything = [way for ways in label_ways for way in ways]
    if not all(label_ways) or len(set(everything)) < len(everything):
        raise ModelError(
            f"the judge's tokenizer cannot tell its answers ({', '.join(labels)}) apart; choose another model "
            "as the judge"
        )
    return label_ways


def label_probabilities(
    model: PreTrainedModel,
    rows: Sequence[LabelQuery],
    ways: Sequence[Sequence[Way]],
    pad: int,
    start: int | None,
    batch_size: int,
    precision: str = "no",
) -> tuple[Tensor, Tensor]:
    """(the probability of each label among all labels (rows, labels), their sum under the model (rows,)), float64 on
    the CPU.

    Parameters: start: the token that the decoder of an encoder-decoder begins with; None for a decoder.
    """
    wanted = sorted(
        {way[:depth] for label in ways for way in label for depth in range(len(way))},
        key=lambda prefix: (len(prefix), prefix),
    )
    order = sorted(range(len(rows)), key=lambda row: -rows[row].length)
    mass = torch.zeros(len(rows), len(ways), dtype=torch.float64)
    rounded = torch.autocast(
        model.device.type, torch.bfloat16, enabled=precision == "bf16" and model.device.type == "cuda"
    )
    training = model.training
    places = sum(row.length for row in rows) * len(wanted)
    model.eval()
    try:
        with torch.inference_mode(), rounded, packed(model, places), attention_by_size(model):
            for begin in range(0, len(order), batch_size):
                batch = order[begin : begin + batch_size]
                after = {
                    prefix: _log_probabilities(model, [rows[row] for row in batch], prefix, pad, start)
                    for prefix in wanted
                }
                mass[batch] = _of_labels(after, ways)
    finally:
        model.train(training)
    whole = mass.sum(1)
    return mass / whole.clamp_min(torch.finfo(torch.float64).tiny)[:, None], whole


def _of_labels(after: dict[Way, Tensor], ways: Sequence[Sequence[Way]]) -> Tensor:
    """(rows, labels): the probability of each label. `after` holds log-probabilities (rows, vocabulary) behind
    each prefix."""
    single = {
        way: sum(after[way[:depth]][:, way[depth]] for depth in range(len(way))).exp()
        for label in ways
        for way in label
    }
    columns = []
    for own in ways:
        others = [way for label in ways if label is not own for way in label]
        column = torch.stack([single[way] for way in own]).sum(0)
        for way in own:
            for longer in others:
                if longer[: len(way)] == way:
                    column = column - single[longer]
        columns.append(column.clamp_min(0.0))
    return torch.stack(columns, 1)


def _log_probabilities(
    model: PreTrainedModel, rows: Sequence[LabelQuery], prefix: Way, pad: int, start: int | None
) -> Tensor:
    """What comes next behind each row and `prefix`: log-probabilities (rows, vocabulary), float64 on the CPU."""
    words: dict[str, Any] = {}
    padding = partial(padded_tensors, fill=pad, device=model.device)
    if start is None:
        texts = [[*row.prompt, *row.written, *prefix] for row in rows]
        words["input_ids"], words["attention_mask"] = padding(texts)
    else:
        texts = [[start, *row.written, *prefix] for row in rows]
        words["input_ids"], words["attention_mask"] = padding([row.prompt for row in rows])
        words["decoder_input_ids"], words["decoder_attention_mask"] = padding(texts)
    lengths = torch.tensor([len(text) for text in texts], device=model.device)
    limits_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
    first = int(lengths.min()) - 1 if limits_logits else 0
    if limits_logits:
        words["logits_to_keep"] = torch.arange(first, int(lengths.max()), device=model.device)
    logits = model(**words).logits
    last = logits[torch.arange(len(rows), device=model.device), lengths - 1 - first].float()
    return torch.log_softmax(last, -1).double().cpu()
