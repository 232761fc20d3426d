"""`optim: muon`: Muon for the matrices of layers, AdamW for everything else, one optimizer with one learning rate.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon)
moves a matrix by the orthogonal matrix nearest to its momentum, which five Newton-Schulz steps find; embeddings, output
matrices, heads, norms and biases stay with AdamW. The update of a matrix is scaled by 0.2 √max(rows, columns): its root
mean square is then about that of AdamW's, so that one learning rate and one weight decay mean the same for both (Liu et
al. 2025, "Muon is Scalable for LLM Training", section 2.2, arxiv.org/abs/2502.16982).

torch takes the Newton-Schulz steps in bfloat16, whatever the weights are. A processor that is not faster in it takes
them in float32 here: one without instructions for it needs 20 to 50 times as long for torch's (decision 25).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, _muon
from transformers.pytorch_utils import Conv1D

from pipelines.core.launch import faster_in_bf16

MOMENTUM = 0.95


def matrices_of_layers(model: nn.Module) -> list[nn.Parameter]:
    """The weights of the linear maps that stand in a stack of layers and that learn, each once."""
    found: dict[int, nn.Parameter] = {}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for stack in model.modules():
        if isinstance(stack, nn.ModuleList):
            for module in stack.modules():
                if isinstance(module, nn.Linear | Conv1D) and module.weight.requires_grad:
                    found.setdefault(id(module.weight), module.weight)
    return [weight for key, weight in found.items() if key not in embeddings]


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """What torch's Newton-Schulz steps make of a matrix (rows, columns), in float32."""
    first, second, third = coefficients
    wide = matrix.size(0) <= matrix.size(1)
    found = (matrix if wide else matrix.T).float()
    found = found / found.norm().clamp(min=eps)  # singular values are at most 1
    for _ in range(steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=second, alpha=third), found, beta=first)
    return found if wide else found.T


@contextmanager
def in_float32() -> Iterator[None]:
    """torch's Muon takes the steps of `orthogonal` inside the `with` block: it has no option for their precision."""
    theirs = _muon._zeropower_via_newtonschulz
    _muon._zeropower_via_newtonschulz = orthogonal
    try:
        yield
    finally:
        _muon._zeropower_via_newtonschulz = theirs


class MuonWithAdamW(Optimizer):
    """torch's Muon and AdamW over the groups of one optimizer: schedules, checkpoints and hooks see only this one."""

    def __init__(
        self,
        model: nn.Module,
        decayed: Collection[str],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """`decayed` are the names of the weights that AdamW decays; the matrices of Muon are all decayed."""
        matrices = matrices_of_layers(model)
        if not matrices:
            raise ValueError(
                f"{type(model).__name__} has no linear maps in a stack of layers that learn, as Muon needs"
            )
        taken = {id(weight) for weight in matrices}
        others = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        others = [(name, weight) for name, weight in others if id(weight) not in taken]
        self.muon = torch.optim.Muon(
            matrices, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
        )
        groups: list[dict[str, Any]] = [
            {"params": [weight for name, weight in others if (name in decayed) is decays], "weight_decay": decay}
            for decays, decay in ((True, weight_decay), (False, 0.0))
        ]
        self.slow_in_bf16 = not faster_in_bf16()
        self.adamw = AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps, fused=True)
        for optimizer in (self.muon, self.adamw):
            for group in optimizer.param_groups:
                group["by"] = type(optimizer).__name__
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of both. The groups may have been replaced meanwhile, by a checkpoint or by a tuner's rates."""
        loss = None if closure is None else closure()
        for optimizer in (self.muon, self.adamw):
            optimizer.param_groups = [group for group in self.param_groups if group["by"] == type(optimizer).__name__]
            optimizer.state = self.state
            on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
            with in_float32() if on_cpu and self.slow_in_bf16 else nullcontext():
                optimizer.step()
        return loss
