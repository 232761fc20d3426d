"""Only the embedding rows that the training text names take part in gradients, their norm and the optimizer's step.

A row that no example names has a gradient of zero, so AdamW (Loshchilov and Hutter 2019, "Decoupled Weight Decay
Regularization", algorithm 2, arxiv.org/abs/1711.05101) moves it by its weight decay alone: each step multiplies it by
1 - rate × decay. While a stage trains, the model therefore holds an embedding of the named rows, and the others are
multiplied once, at the end, by the product of these factors. What is learnt is the same.

This holds for heads that decide (classes, numbers, tags, spans, choices), whose models read what the examples name and
nothing else: not where the matrix is tied to the output (a softmax gives every row a gradient) or the model reads words
that it is to write, and not for optimizers that move a row without a gradient by more than its decay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from pipelines.models import fsdp
from pipelines.trainers.model_selection import Examples

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
"""Those that leave a row without a gradient to its weight decay."""
WORTH = 0.9
"""With a larger share of rows named than this, the whole matrix learns."""


class NamedRows(nn.Module):
    """An embedding in which only the rows `named` (rows,), sorted, are weights: ids (…,) -> vectors (…, dim).

    Ids keep their meaning. One that is not named is refused by an IndexError: its row is not here.
    """

    def __init__(self, whole: nn.Embedding, named: Tensor) -> None:
        super().__init__()
        self.whole = [whole]  # in a list, so that its weights are none of this module's
        self.weight = nn.Parameter(whole.weight.detach()[named].clone())
        self.named = nn.Buffer(named, persistent=False)
        place = torch.full((whole.num_embeddings,), len(named), device=named.device)  # beyond the last row
        place[named] = torch.arange(len(named), device=named.device)
        self.place = nn.Buffer(place, persistent=False)
        padding = whole.padding_idx
        self.padding_idx = None if padding is None or place[padding] == len(named) else int(place[padding])
        self.gradient: RowGradient | None = None
        """What takes in the gradients of the weight, where autograd does not."""

    def forward(self, ids: Tensor) -> Tensor:
        if self.gradient is not None and self.weight.requires_grad and torch.is_grad_enabled():
            looked_up: Tensor = _LookUp.apply(self.weight, self.place[ids], self.gradient)
            return looked_up
        return nn.functional.embedding(self.place[ids], self.weight, self.padding_idx)

    @torch.no_grad()
    def rejoined(self, decay: float) -> nn.Embedding:
        """The whole embedding: named rows as they are now, the others multiplied by `decay`."""
        learnt = fsdp.whole(self.weight)
        whole = self.whole[0].to(learnt.device)  # where it was opened till now, and not where it is trained
        whole.weight.mul_(decay)
        whole.weight[self.named.to(learnt.device)] = learnt.to(whole.weight.dtype)
        return whole


class RowGradient:
    """The gradient of an embedding's weight (rows, dim), of which only the rows that a step read are written and read.

    Autograd would make a matrix of zeros each step, which is then read for its norm, and multiplied where gradients are
    clipped. Here one matrix stays: what the last step wrote is zeroed when the weight's gradient has been taken away.
    """

    def __init__(self, weight: nn.Parameter, padding_idx: int | None) -> None:
        self.weight, self.padding_idx = weight, padding_idx
        self.whole = torch.zeros_like(weight, requires_grad=False)
        self.touched = torch.zeros(0, dtype=torch.int64)
        """Rows that may be other than zero, each once."""

    def add(self, places: Tensor, gradient: Tensor) -> None:
        """Take in the gradient (…, dim) of what was read at `places` (…,)."""
        rows, at = torch.unique(places, return_inverse=True)
        found = torch.ops.aten.embedding_dense_backward(gradient, at, len(rows), -1, False)
        if self.padding_idx is not None:
            found[rows == self.padding_idx] = 0
        if self.weight.grad is None:
            self.whole[self.touched] = 0
            self.touched, self.weight.grad = rows, self.whole
            self.whole[rows] = found
            return
        if self.weight.grad is self.whole:
            self.touched = torch.unique(torch.cat([self.touched, rows]))
        self.weight.grad[rows] += found

    def part(self) -> Tensor | None:
        """What stands for the weight where gradients are measured and cut: its gradient is a copy of the touched rows
        (touched, dim). None while the weight's gradient is another one."""
        if self.weight.grad is not self.whole:
            return None
        rows = self.whole[self.touched]
        part = torch.empty_like(rows)
        part.grad = rows
        return part

    def take_back(self, part: Tensor) -> None:
        """Write the rows that `part` gave, changed."""
        assert part.grad is not None
        self.whole[self.touched] = part.grad


class _LookUp(torch.autograd.Function):
    """Rows of a weight (rows, dim) at places (…,) -> (…, dim); its gradient goes to `RowGradient`."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, places: Tensor, gradient: RowGradient) -> Tensor:
        ctx.save_for_backward(places)
        ctx.gradient = gradient  # type: ignore[attr-defined]
        return torch.embedding(weight, places)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.gradient.add(ctx.saved_tensors[0], gradient.contiguous())
        return None, None, None


class RowsInUse:
    """The embedding of a model that is being trained, cut to its named rows until `rejoin`."""

    def __init__(self, model: PreTrainedModel, rows: NamedRows, places: list[tuple[nn.Module, str]]) -> None:
        self.model, self.rows, self.places = model, rows, places
        self.decay = 1.0
        """What the weight decay of the steps so far has multiplied the other rows by."""

    def keep_gradient(self) -> RowGradient:
        """Where the gradients of the rows go from now on. For a process that learns alone, on a processor."""
        self.rows.gradient = RowGradient(self.rows.weight, self.rows.padding_idx)
        return self.rows.gradient

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep `decay` in step with the optimizer."""

        def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
            weight = self.rows.weight
            if weight.grad is not None:  # a weight that does not learn yet is not decayed either
                for group in optimizer.param_groups:
                    if any(each is weight for each in group["params"]):
                        self.decay *= 1 - float(group["lr"]) * group["weight_decay"]

        optimizer.register_step_post_hook(stepped)

    def rejoin(self) -> None:
        """Give the model its whole embedding back."""
        whole = self.rows.rejoined(self.decay)
        whole.weight.requires_grad_(self.rows.weight.requires_grad)
        for parent, name in self.places:
            setattr(parent, name, whole)


def ids_in(examples: Examples) -> Iterator[Iterable[int]]:
    """The token ids of every row; of a row of several texts, those of each text."""
    whole = getattr(examples, "input_ids", None)
    rows = (examples[at]["input_ids"] for at in range(len(examples))) if whole is None else whole
    for row in rows:
        if len(row) and isinstance(row[0], Sequence | np.ndarray):
            yield from row
        else:
            yield row


def cut(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, optimizer: str, *read: Examples | None
) -> RowsInUse | None:
    """Cut the model's word embedding to the rows that the examples and the special tokens name.

    None, with the model untouched, where that would not be exact or not worth it: the matrix does not learn, the model
    writes words, something that is no embedding holds the matrix, the optimizer is another, or most rows are named.
    """
    embedding = model.get_input_embeddings()
    if optimizer not in OPTIMIZERS or type(embedding) is not nn.Embedding or not embedding.weight.requires_grad:
        return None
    if model.get_output_embeddings() is not None:  # what is written is read again, and examples do not name it all
        return None
    if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
        return None
    places = _holders(model, embedding.weight)
    if places is None:
        return None
    config = model.config.to_dict()
    ids = {each for key, each in config.items() if key.endswith("_token_id") and isinstance(each, int)}
    ids.update(tokenizer.all_special_ids, *chain.from_iterable(ids_in(each) for each in read if each is not None))
    named = torch.tensor(sorted(each for each in ids if 0 <= each < embedding.num_embeddings))
    if len(named) > WORTH * embedding.num_embeddings:
        return None
    rows = NamedRows(embedding, named.to(embedding.weight.device))
    for parent, name in places:
        setattr(parent, name, rows)
    return RowsInUse(model, rows, places)


def _holders(model: nn.Module, weight: Tensor) -> list[tuple[nn.Module, str]] | None:
    """(parent, attribute) of each embedding that holds the weight; None where something else holds it too."""
    places: list[tuple[nn.Module, str]] = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if any(each is weight for each in child.parameters(recurse=False)):
                if type(child) is not nn.Embedding:
                    return None
                places.append((parent, name))
    return places
