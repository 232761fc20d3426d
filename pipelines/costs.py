"""What LoRA adds to a model, by formula. Hu et al. 2021, section 4.1, arxiv.org/abs/2106.09685."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.architectures.arithmetic import Linear


@dataclass(frozen=True)
class Adapter:
    """What LoRA adds to a model."""

    learnt: int
    """Weights that learn: the updates, and modules that are trained whole."""
    added: int
    """Weights that the model has more than before: the updates, and copies of the modules that are trained whole."""
    flops_per_token: int
    """Forward operations of the updates."""
    by_layer: Mapping[str, int] = field(default_factory=dict)
    """Weights that learn, by the linear layer they belong to; empty where that is not known."""


def lora(
    layers: Sequence[Linear],
    *,
    r: int,
    target_modules: Sequence[str] | str = "all-linear",
    whole: Sequence[str] = (),
    use_dora: bool = False,
    bias: str = "none",
    other_biases: int = 0,
) -> Adapter:
    """Two matrices for each target, and the modules named by `whole`.

    `other_biases` is how many the model has outside `layers`: those of norms and of the output matrix.
    """

    def named(layer: Linear, names: Sequence[str]) -> bool:
        return any(layer.name == name or layer.name.endswith(f".{name}") for name in names)

    kept = [layer for layer in layers if named(layer, whole)]
    free = [layer for layer in layers if layer not in kept]
    if isinstance(target_modules, str):
        targets = [layer for layer in free if layer.name.startswith("model.")]
    else:
        targets = [layer for layer in free if named(layer, target_modules)]
    by_layer = {layer.name: r * (layer.inputs + layer.outputs) for layer in targets}
    products = sum(by_layer.values())
    updates = products + (sum(layer.outputs for layer in targets) if use_dora else 0)
    copies = sum(layer.parameters for layer in kept)
    with_bias = {"none": [], "lora_only": targets, "all": free}[bias]
    biases = sum(layer.outputs for layer in with_bias if layer.bias) + (other_biases if bias == "all" else 0)
    by_layer |= {layer.name: layer.parameters for layer in kept}
    return Adapter(updates + copies + biases, updates + copies, 2 * products, by_layer)
