"""What a tuner adds to a model; for LoRA by formula. Hu et al. 2021, section 4.1, arxiv.org/abs/2106.09685."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.architectures.arithmetic import Linear

BESIDE = "prompt_encoder."
"""How the names of the weights begin that PEFT puts beside a model."""
PREFIXES = ("base_model.model.", "base_model.", "")
"""What PEFT puts before a model's own names: the first where it changes layers, the second where it stands beside."""


@dataclass(frozen=True)
class Adapter:
    """What a tuner adds to a model, and what of it learns."""

    learnt: int
    """Weights that learn: what was added, modules that are trained whole, and those of the model itself that are chosen."""
    added: int
    """Weights that the model has more than before: the updates, and copies of the modules that are trained whole."""
    flops_per_token: int
    """Forward operations of the updates."""
    by_layer: Mapping[str, int] = field(default_factory=dict)
    """Weights that learn, by the linear layer they belong to; empty where that is not known."""
    reaches_body: bool = True
    """Whether gradients must pass through the body: not when only the head learns."""
    packed: int = 0
    """Frozen weights that are kept in few bits."""

    def passes(self, parameters: int) -> float:
        """What a training step costs, in forward passes, on a model of so many `parameters` before.

        One forward; one for the gradients of the inputs, where they are needed; one for those of all weights, of which
        only the share that learns is computed.
        """
        return 1 + self.reaches_body + max(0, self.learnt - self.added) / parameters


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


def of_tuned(before: Mapping[str, int], tuned: Any, body: str) -> Adapter:
    """What a tuner added to a built model, seen by comparing: `before` are its weights by name, `tuned` is what `apply` returned.

    A matrix that was added inside the model multiplies every token; what stands beside the model (virtual tokens and what
    makes them) is computed once. `body` is the name of the model without its head.
    """
    weights = {_own_name(name, before): weight for name, weight in tuned.named_parameters()}
    learnt = {name: weight.numel() for name, weight in weights.items() if weight.requires_grad}
    updates = {name: weight for name, weight in weights.items() if name not in before and ".modules_to_save." not in name}
    products = sum(weight.numel() for name, weight in updates.items() if weight.ndim > 1 and not name.startswith(BESIDE))
    head = [name for name in learnt if ".modules_to_save." in name or (name in before and f".{body}." not in f".{name}")]
    added = sum(weight.numel() for weight in weights.values()) - sum(before.values())
    return Adapter(sum(learnt.values()), added, 2 * products, reaches_body=len(head) < len(learnt))


def _own_name(name: str, known: Mapping[str, int]) -> str:
    """A parameter's name in the model without PEFT's wrappers; a name that the model does not know stays as it is."""
    bare = name.replace(".base_layer.", ".").replace(".original_module.", ".")
    return next((own for prefix in PREFIXES if (own := bare.removeprefix(prefix)) in known), name)
