"""The reference model that a policy is held to: a frozen copy, the disabled adapter, or numbers written down before.

All of them are asked without gradients and without dropout, in the precision that the policy computes in, and after the
policy: under autocast a weight's cast that was made without gradients would be used again, and the policy would learn
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from pipelines.core.interfaces import Context, World
from pipelines.models import fsdp
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.log_probabilities import sums, token_log_probabilities
from pipelines.models.open_once import copied
from pipelines.trainers import training_attention
from pipelines.tuners.tuner import Tuner

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from pipelines.trainers.model_selection import Examples


class ReferenceModel(Protocol):
    """What is asked."""

    def model_for(self, policy: nn.Module, exact: bool = False) -> AbstractContextManager[nn.Module]:
        """Inside the `with` block: the reference, on the policy's device, without gradients and dropout. It computes in
        the precision of the training, or in fp32 when `exact`."""


class FrozenCopy:
    """A model of its own that never learns. It is moved to where the policy is when it is first asked, and divided
    among the processes if the policy is."""

    def __init__(self, model: PreTrainedModel, precision: str = "no") -> None:
        self.model = model.eval().requires_grad_(False)
        self.precision = precision

    @classmethod
    def of(cls, model: PreTrainedModel, precision: str = "no") -> FrozenCopy:
        """A copy of `model` as it is now."""
        return cls(copied(model), precision)

    @contextmanager
    def model_for(self, policy: nn.Module, exact: bool = False) -> Iterator[nn.Module]:
        """The copy."""
        device = next(policy.parameters()).device
        if not fsdp.is_sharded(policy):
            if next(self.model.parameters()).device != device:
                self.model.to(device)
        elif not fsdp.is_sharded(self.model):
            fsdp.shard(self.model, device, torch.distributed.get_world_size())
        precision = computed_in("no" if exact else self.precision, device)
        with torch.no_grad(), precision, attention_by_size(self.model, training_attention.register()):
            yield self.model


class DisabledAdapter:
    """The policy's own base: no second copy is in memory. For tuners that leave the base as it was."""

    def __init__(self, precision: str = "no") -> None:
        self.precision = precision

    @contextmanager
    def model_for(self, policy: nn.Module, exact: bool = False) -> Iterator[nn.Module]:
        """The base, with the adapter switched off until the block ends."""
        tuned = peft_model_in(policy)
        device = next(tuned.parameters()).device
        modes = {module: module.training for module in tuned.modules()}
        learning = {name: weight.requires_grad for name, weight in tuned.named_parameters()}
        tuned.eval()
        precision = computed_in("no" if exact else self.precision, device)
        try:
            with (
                torch.no_grad(),
                tuned.disable_adapter(),
                precision,
                attention_by_size(tuned, training_attention.register()),
            ):
                yield tuned
        finally:
            for module, training in modes.items():
                module.training = training
            for name, weight in tuned.named_parameters():  # PEFT lets everything that is not frozen learn again
                weight.requires_grad_(learning[name])


def reference_for(model: PreTrainedModel, tuner: Tuner, precision: str = "no") -> ReferenceModel:
    """The model as it is now, before `tuner` is applied to it, as the reference of what it becomes in a training of
    that `precision`."""
    return DisabledAdapter(precision) if tuner.keeps_base else FrozenCopy.of(model, precision)


def peft_model_in(policy: PreTrainedModel) -> PeftModel | None:
    """The PEFT model inside DistributedDataParallel and torch.compile."""
    bare = policy.module if isinstance(policy, nn.parallel.DistributedDataParallel) else policy
    bare = getattr(bare, "_orig_mod", bare)
    return bare.module if isinstance(bare, nn.parallel.DistributedDataParallel) else bare


class HeldTo(NamedTuple):
    """What a policy learns from, and what it is held to."""

    examples: Examples
    held_out: Examples | None
    reference: ReferenceModel | None
    """None where its numbers stand in the examples."""


def held_to(
    context: Context,
    model: PreTrainedModel,
    tuner: Tuner,
    arguments: Any,
    collate: Callable[[list[dict[str, object]]], dict[str, Tensor]],
    examples: Examples,
    held_out: Examples | None = None,
    other: PreTrainedModel | None = None,
    temperature: float = 1.0,
) -> HeldTo:
    """The reference of a policy that is `model` before `tuner` is applied to it: `other`, else the policy as it is now.

    Where `arguments.precompute_ref_log_probs` its numbers are asked for here.
    """
    if not arguments.precompute_ref_log_probs:
        precision = context.precision
        reference = reference_for(model, tuner, precision) if other is None else FrozenCopy(other, precision)
        return HeldTo(examples, held_out, reference)
    if other is not None:
        asked = other
    else:
        asked = copied(model) if context.world.is_sharded else model  # the policy is divided when it is tuned
    size = arguments.precompute_ref_batch_size or arguments.per_device_train_batch_size
    stored = precomputed(context, asked, examples, collate, size, "reference", temperature=temperature)
    examples = WithReference(examples, stored)
    if held_out is not None:
        name = "reference-held-out"
        stored = precomputed(context, asked, held_out, collate, size, name, exact=True, temperature=temperature)
        held_out = WithReference(held_out, stored)
    return HeldTo(examples, held_out, None)


def computed_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which passes outside of the training loop compute in a `precision` of `launch.mixed_precision`."""
    if precision == "no":
        return nullcontext()
    lower: AbstractContextManager[Any] = torch.autocast(
        device.type, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    )
    return lower


def precomputed(
    context: Context,
    model: PreTrainedModel,
    examples: Examples,
    collate: Callable[[list[dict[str, object]]], dict[str, Tensor]],
    batch_size: int,
    name: str,
    exact: bool = False,
    temperature: float = 1.0,
) -> np.ndarray:
    """Log-probabilities that `model` gives to both answers of every example (examples, 2), fp32.

    They are computed in the precision of the training, or in fp32 when `exact`. They are kept as `NAME.npy` in the
    stage's folder, so that a resumed run compares with the same numbers to the bit. The processes share the work; where
    weights are to be divided among them, those of `model` are.
    """
    path: Path = context.folder / f"{name}.npy"
    if path.exists():
        stored: np.ndarray = np.load(path, allow_pickle=False)
        if stored.shape == (len(examples), 2):
            return stored
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mine = range(context.world.rank, len(examples), context.world.size)
    order = sorted(mine, key=lambda place: -int(examples.lengths[place]))
    answered = np.zeros((len(examples), 2), dtype=np.float32)
    training = model.training
    if not context.world.is_sharded:
        model.to(device)
    elif not fsdp.is_sharded(model):
        fsdp.shard(model, device, context.world.size)
    model.eval()
    with torch.no_grad(), computed_in("no" if exact else context.precision, device):
        for places in shares(order, len(examples), batch_size, context.world):
            asked = [dict(examples[place]) for place in places or [0]]
            found = answers(model, collate(asked), device, temperature)
            answered[places] = found[: len(places)]
    model.train(training)
    whole = np.sum(context.gather(answered), axis=0, dtype=np.float32)
    if context.world.is_main:
        unfinished = path.with_name(f"{name}.partial.npy")
        np.save(unfinished, whole)
        unfinished.rename(path)
    context.barrier()
    return np.asarray(whole)


def shares(order: Sequence[int], rows: int, batch_size: int, world: World) -> Iterator[Sequence[int]]:
    """Batches of this process's `order` of `rows` that the processes share, as many on every process: divided weights
    are gathered by all of them together. Where one has no more rows its batches are empty."""
    for start in range(0, len(range(0, rows, world.size)), batch_size):
        yield order[start : start + batch_size]


def answers(
    model: PreTrainedModel, batch: dict[str, Tensor], device: torch.device, temperature: float = 1.0
) -> np.ndarray:
    """log p of the chosen and of the rejected answers of a batch (pairs, 2). `temperature` divides the logits."""
    moved = {key: value.to(device) for key, value in batch.items()}
    total, _ = sums(token_log_probabilities(model, moved, temperature=temperature))
    return np.asarray(torch.stack(total.chunk(2), dim=1).float().cpu().numpy())


class WithReference:
    """Examples, each with the reference's log-probabilities of its two answers as `reference`."""

    def __init__(self, examples: Examples, reference: np.ndarray) -> None:
        self.examples = examples
        self.reference = reference
        self.lengths = examples.lengths
        self.index = examples.index

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, position: int) -> dict[str, object]:
        return {**self.examples[position], "reference": self.reference[position]}

    def select(self, positions: Sequence[int] | np.ndarray) -> WithReference:
        """The rows at `positions`."""
        return WithReference(self.examples.select(positions), self.reference[np.asarray(positions, dtype=np.int64)])
