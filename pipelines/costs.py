"""What a training stage costs, by formula: weights that learn, operations, bytes.

Only for shapes of our own family are layers known one by one; the formulas hold for any transformer of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

FLOAT = 4
"""Bytes of a weight: models are kept in float32, mixed precision computes in copies."""
OPTIMIZER_BYTES = {"adamw_torch": 8, "adamw_torch_fused": 8, "adafactor": 0, "sgd": 0, "adagrad": 4, "rmsprop": 4}
"""Bytes of optimizer state for each weight that learns. Adafactor's two vectors a matrix are too small to count."""


@dataclass(frozen=True)
class Linear:
    """One linear layer of a model."""

    name: str
    inputs: int
    outputs: int

    @property
    def parameters(self) -> int:
        """A matrix and a bias."""
        return self.inputs * self.outputs + self.outputs


def linear_layers(config: Mapping[str, int], head: str, num_labels: int) -> list[Linear]:
    """The linear layers of our family's model with that head, the output embedding of a masked LM left out."""
    dim, inner = config["hidden_size"], config["intermediate_size"]
    layers = []
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}"
        layers += [Linear(f"{prefix}.attention.{name}", dim, dim) for name in ("query", "key", "value", "output")]
        layers += [Linear(f"{prefix}.feed_forward.intermediate", dim, inner)]
        layers += [Linear(f"{prefix}.feed_forward.output", inner, dim)]
    if head == "masked_lm":
        return [*layers, Linear("lm_head.dense", dim, dim)]
    return [*layers, Linear("model.pooler.dense", dim, dim), Linear("classifier", dim, num_labels)]


@dataclass(frozen=True)
class Adapter:
    """What LoRA adds to a model. Hu et al. 2021, section 4.1, arxiv.org/abs/2106.09685."""

    learnt: int
    """Weights that learn: the updates, and modules that are trained whole."""
    added: int
    """Weights that the model has more than before: the updates, and copies of the modules that are trained whole."""
    flops_per_token: int
    """Forward operations of the updates."""


def lora(
    layers: Sequence[Linear],
    *,
    r: int,
    target_modules: Sequence[str] | str = "all-linear",
    whole: Sequence[str] = (),
    use_dora: bool = False,
    bias: str = "none",
    all_biases: int = 0,
) -> Adapter:
    """Two matrices for each target, and the modules named by `whole`. `all_biases` is how many the whole model has."""

    def named(layer: Linear, names: Sequence[str]) -> bool:
        return any(layer.name == name or layer.name.endswith(f".{name}") for name in names)

    kept = [layer for layer in layers if named(layer, whole)]
    free = [layer for layer in layers if layer not in kept]
    if isinstance(target_modules, str):
        targets = [layer for layer in free if layer.name.startswith("model.")]
    else:
        targets = [layer for layer in free if named(layer, target_modules)]
    products = sum(r * (layer.inputs + layer.outputs) for layer in targets)
    updates = products + (sum(layer.outputs for layer in targets) if use_dora else 0)
    copies = sum(layer.parameters for layer in kept)
    others = all_biases - sum(layer.outputs for layer in kept)  # theirs are among the copies
    biases = {"none": 0, "lora_only": sum(layer.outputs for layer in targets), "all": others}[bias]
    return Adapter(updates + copies + biases, updates + copies, 2 * products)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process while it trains, the Python process itself (about half a gigabyte) left out."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def to_json(self) -> dict[str, int]:
        """As plain data."""
        return {**asdict(self), "total": self.total}


def memory(
    *, parameters: int, trainable: int, optimizer: str, activations: int, mixed: bool, processes: int
) -> Memory:
    """Weights (and their 16-bit copies), gradients (twice with several processes: their buckets), optimizer state."""
    return Memory(
        weights=parameters * (FLOAT + (2 if mixed else 0)),
        gradients=trainable * FLOAT * (2 if processes > 1 else 1),
        optimizer=trainable * OPTIMIZER_BYTES[optimizer],
        activations=activations,
    )


def activations(
    config: Mapping[str, int],
    *,
    batch: int,
    length: int,
    predicted: int,
    mixed: bool,
    on_cpu: bool,
    recomputed: bool = False,
) -> int:
    """Bytes kept for the backward pass of `batch` sequences of `length` tokens.

    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.1,
    arxiv.org/abs/2205.05198, with their 34 sbh + 5 as²b taken apart: a layer keeps six vectors of the hidden size (the
    input, query, key, value, attended values, the input of the feed-forward network) and two of the inner size; two
    inputs of norms, in float32; two dropout masks; and two values and a mask for each pair of tokens and head, unless
    a fused kernel computes them again, as on a GPU. `predicted` is how many tokens have logits over the vocabulary:
    these exist three times, in float32.
    """
    dim, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    value = 2 if mixed else FLOAT
    mask = value if on_cpu else 1  # torch's dropout keeps a whole number a value on a CPU, a byte on a GPU
    tokens = batch * length
    layer = tokens * (value * (6 * dim + 2 * inner) + FLOAT * 2 * dim + mask * 2 * dim)
    if on_cpu:
        layer += batch * heads * length * length * (2 * value + mask)
    layers = config["num_hidden_layers"]
    kept = tokens * dim * FLOAT * layers + layer if recomputed else layers * layer
    embeddings = tokens * dim * (FLOAT + mask)
    logits = predicted * (3 * FLOAT * config["vocab_size"] + 4 * value * dim)
    return kept + embeddings + logits
