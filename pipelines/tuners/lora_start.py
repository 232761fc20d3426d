"""Where the two matrices of LoRA begin when they take over a part of the frozen weight: PiSSA and OLoRA.

PiSSA (Meng et al. 2024, section 3, arxiv.org/abs/2404.02948) starts the update at the r largest singular values of the
weight, OLoRA (Büyükakyüz 2024, arxiv.org/abs/2406.01775) at the first r columns of its QR decomposition; what is taken over
is subtracted, so that base and update together begin as the weight was: W = R + s B0 A0, s being LoRA's scale.

The base is then another one than the checkpoint's. What is learnt is written as plain LoRA of twice the rank on the
checkpoint's own weight: s (B A - B0 A0) = s [B, -B0] [A; A0] (PiSSA, section 4 and appendix C).

Both starts are computed here and not by PEFT 0.21, whose OLoRA takes GPT-2's transposed matrices for upright ones, and whose
conversion refuses `use_rslora` beside a pattern. A checkpoint of the middle of a training holds A and B alone: the same base
is found again by starting anew, for B0 A0 is unique where A0 and B0 are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import Misfit
from pipelines.tuners.layers import is_transposed, sizes

TAKING_OVER = ("pissa", "olora")
"""How the names begin of the starts that take over a part of the weight."""
OVERSAMPLED = 8
"""Directions that the fast search for singular values looks along beside those it is asked for."""
Start = Mapping[str, tuple[Any, Any]]
"""(A0 (r, in), B0 (out, r)) of each layer, by its full name in the base."""


def takes_over(init_lora_weights: bool | str) -> bool:
    """Whether this start changes the base."""
    return isinstance(init_lora_weights, str) and init_lora_weights.startswith(TAKING_OVER)


def start(model: Any, init_lora_weights: str) -> Start:
    """Let the updates of a PEFT `model` take over a part of their base. Raises Misfit where the rank is beyond a matrix."""
    found: dict[str, tuple[Any, Any]] = {}
    adapter = model.active_adapter
    for name, module in model.base_model.model.named_modules():
        if adapter not in getattr(module, "lora_A", {}):
            continue
        base, rank, scale = module.get_base_layer(), module.r[adapter], module.scaling[adapter]
        if rank > min(sizes(base)):
            raise Misfit(
                f"lora: the rank of '{name}' is {rank}, but its matrix of {sizes(base)[1]} x {sizes(base)[0]} has no more than "
                f"{min(sizes(base))} directions for {init_lora_weights} to take over; lower r, or give the layer its own in rank_pattern"
            )
        found[name] = _take_over(module, base, adapter, rank, scale, init_lora_weights)
    return found


def _take_over(module: Any, base: Any, adapter: str, rank: int, scale: float, way: str) -> tuple[Any, Any]:
    """Set A, B and the rest of one layer's weight; returns (A0, B0)."""
    import torch

    a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    if base.weight.is_meta:  # a model that is only counted
        return a, b
    with torch.no_grad():
        stored = base.weight.data
        weight = (stored.T if is_transposed(base) else stored).float()  # (out, in)
        before, after = _olora(weight, rank) if way == "olora" else _pissa(weight, rank, scale, way)
        a.copy_(before)
        b.copy_(after)
        rest = weight - scale * (after @ before)
        base.weight.data = (rest.T if is_transposed(base) else rest).to(stored.dtype).contiguous()
    return a.detach().clone(), b.detach().clone()


def _pissa(weight: Any, rank: int, scale: float, way: str) -> tuple[Any, Any]:
    """A0 = sqrt(S) V^T, B0 = U sqrt(S), of the r largest singular values divided by the scale."""
    import torch

    if way == "pissa":
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
    else:  # pissa_niter_N: Halko et al. 2009, sections 4.5 and 5.1, arxiv.org/abs/0909.4061, the same draw on every start
        with torch.random.fork_rng(devices=[weight.device] if weight.is_cuda else []):
            torch.manual_seed(0)
            left, values, turned = torch.svd_lowrank(weight, min(rank + OVERSAMPLED, *weight.shape), niter=int(way.rpartition("_")[2]))
        right = turned.T
    root = (values[:rank] / scale).sqrt()
    return root[:, None] * right[:rank], left[:, :rank] * root


def _olora(weight: Any, rank: int) -> tuple[Any, Any]:
    """A0 = R[:r], B0 = Q[:, :r]."""
    import torch

    orthogonal, triangular = torch.linalg.qr(weight)
    return triangular[:rank], orthogonal[:, :rank]


def convert(folder: Path, begun: Start) -> None:
    """Rewrite the adapter saved in `folder` as plain LoRA of twice the rank on the base as it was before `start`."""
    import torch
    from safetensors.torch import load_file, save_file

    weights_path, config_path = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    weights = load_file(weights_path)
    for name, (a, b) in begun.items():
        for part, joined in (("lora_A", (0, a)), ("lora_B", (1, -b))):
            axis, before = joined
            key = f"base_model.model.{name}.{part}.weight"
            weights[key] = torch.cat([weights[key], before.to(weights[key])], dim=axis).contiguous()
    save_file(weights, weights_path, metadata={"format": "pt"})
    config = json.loads(config_path.read_text())
    # The scale stays: it is alpha / r, or alpha / sqrt(r) under use_rslora.
    wider = 2**0.5 if config["use_rslora"] else 2
    config |= {
        "r": 2 * config["r"],
        "lora_alpha": wider * config["lora_alpha"],
        "rank_pattern": {name: 2 * rank for name, rank in (config["rank_pattern"] or {}).items()},
        "alpha_pattern": {name: wider * alpha for name, alpha in (config["alpha_pattern"] or {}).items()},
    }
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True))
