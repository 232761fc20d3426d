"""How many weights a shape has and how many operations a sequence costs, without building it.

Pure arithmetic on a config's fields: neither torch nor transformers is imported, so `finery plan` answers at once.
Nothing here travels with a checkpoint.
"""

from collections.abc import Mapping
from typing import Any

from .contradictions import contradictions

HEADS = ("base", "masked_lm", "sequence_classification")
"""What may stand on the encoder: FineryModel itself, FineryForMaskedLM, FineryForSequenceClassification."""

DEFAULTS: dict[str, object] = {
    "family": "encoder",
    "position": "learned",
    "norm_position": "post",
    "sparse_prediction": False,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
}
"""FineryConfig's own fields with their default values."""


def parameter_count(config: Mapping[str, object], head: str, num_labels: int = 2) -> dict[str, int]:
    """Weights by module, and their `total`. A matrix that two modules share is counted once, with the embeddings.

    `config` holds FineryConfig fields; absent ones have their default value.
    """
    fields = _complete(config, head)
    dim, vocab, layers = fields["hidden_size"], fields["vocab_size"], fields["num_hidden_layers"]
    learned_positions = fields["max_position_embeddings"] if fields["position"] == "learned" else 0
    norm = 2 * dim  # a gain and a bias
    num_norms = 1 + 2 * layers + (1 if fields["norm_position"] == "pre" else 0)  # embeddings, layers, final
    counts = {
        "embeddings": (vocab + learned_positions + fields["type_vocab_size"]) * dim,
        "attention": layers * 4 * _linear(dim, dim),  # query, key, value, output
        "feed_forward": layers
        * (_linear(dim, fields["intermediate_size"]) + _linear(fields["intermediate_size"], dim)),
        "norms": num_norms * norm,
        "pooler": 0 if head == "masked_lm" else _linear(dim, dim),
        "head": 0,
    }
    if head == "masked_lm":
        output_matrix = 0 if fields["tie_word_embeddings"] else vocab * dim
        counts["head"] = _linear(dim, dim) + norm + output_matrix + vocab  # transform, norm, decoder and its bias
    elif head == "sequence_classification":
        counts["head"] = _linear(dim, num_labels)
    return {**counts, "total": sum(counts.values())}


def forward_flops(
    config: Mapping[str, object],
    head: str,
    sequence_length: int,
    num_labels: int = 2,
    predicted_tokens: int | None = None,
) -> dict[str, int]:
    """Floating-point operations of one forward pass over one sequence, by part, and their `total`.

    A multiply-add counts as two. Only matrix products are counted: norms, softmax and activations cost a few
    operations a number. A training step costs about three times as much (Kaplan et al. 2020, section 2.1,
    arxiv.org/abs/2001.08361). `predicted_tokens` is how many positions a sparse masked-LM head computes; default: all.
    """
    fields = _complete(config, head)
    dim, layers, tokens = fields["hidden_size"], fields["num_hidden_layers"], sequence_length
    flops = {
        "attention_projections": layers * 4 * 2 * tokens * dim * dim,
        "attention_scores": layers * 2 * 2 * tokens * tokens * dim,  # q kᵀ, then weights times v
        "feed_forward": layers * 2 * 2 * tokens * dim * fields["intermediate_size"],
        "pooler": 0 if head == "masked_lm" else 2 * dim * dim,
        "head": 0,
    }
    if head == "masked_lm":
        predicted = tokens if predicted_tokens is None else predicted_tokens
        flops["head"] = 2 * predicted * dim * (dim + fields["vocab_size"])
    elif head == "sequence_classification":
        flops["head"] = 2 * dim * num_labels
    return {**flops, "total": sum(flops.values())}


def _complete(config: Mapping[str, object], head: str) -> dict[str, Any]:
    """The config with its defaults, refused if the model's own constructor would refuse it."""
    if head not in HEADS:
        raise ValueError(f"head is {head!r}, must be one of: {', '.join(HEADS)}")
    fields = {**DEFAULTS, **config}
    if found := contradictions(fields):
        raise ValueError("\n".join(found))
    return fields


def _linear(inputs: int, outputs: int) -> int:
    """A matrix and a bias."""
    return inputs * outputs + outputs
