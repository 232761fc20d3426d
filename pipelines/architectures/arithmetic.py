"""How many weights a shape has and how many operations a sequence costs, without building it.

Pure arithmetic on a config's fields: neither torch nor transformers is imported, so `finery plan` answers at once.
Nothing here travels with a checkpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .configuration_rules import DEFAULTS, Config, completed, contradictions

ANY_FAMILY = ("sequence_classification", "token_classification", "question_answering", "multiple_choice", "reward")
HEADS: dict[str, tuple[str, ...]] = {
    "encoder": ("base", "masked_lm", "pretraining", *ANY_FAMILY),
    "decoder": ("base", "causal_lm", "causal_lm_with_value", *ANY_FAMILY),
    "encoder-decoder": ("base", "seq2seq_lm", *ANY_FAMILY),
}
"""What may stand on each family; `base` is FineryModel itself."""
WORD_HEADS = ("masked_lm", "pretraining", "causal_lm", "causal_lm_with_value", "seq2seq_lm")
"""Heads that score every word of the vocabulary."""
UNPOOLED = ("masked_lm", "token_classification", "question_answering")
"""Heads of an encoder that read its tokens one by one, with no pooler below them."""
POOLED_HEADS = ("sequence_classification", "multiple_choice", "reward")
"""Heads on a whole text, which read an encoder's pooled first token or the mean of its tokens."""
CHUNK = 64
"""Positions that causal linear attention takes together; see `attention.linear_attention`."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Sequence lengths that `growth` looks at."""


@dataclass(frozen=True)
class LinearLayer:
    """One linear layer of a model."""

    name: str
    inputs: int
    outputs: int
    bias: bool = True
    part: str = ""
    """The part of the model whose costs it belongs to."""
    tokens: str = "sequence"
    """What passes through it: `sequence` and `target` tokens, those that are `predicted`, or `one` vector a
    sequence."""

    @property
    def parameters(self) -> int:
        """A matrix and, if it has one, a bias."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


def parameter_count(config: Config, head: str, num_labels: int = 2) -> dict[str, int]:
    """Weights by module, and their `total`. A matrix that two modules share is counted once, with the embeddings.

    `config` holds FineryConfig fields; absent ones have their default value. Projections of a head and of its pooler
    are found under their names; vectors of an attention's scoring and of its QK-norm belong to that attention.
    """
    fields = whole(config, head)
    dim, narrow, vocab = fields["hidden_size"], fields["embedding_size"], fields["vocab_size"]
    counts = dict.fromkeys(("embeddings", "attention", "cross_attention", "feed_forward", "norms", "pooler", "head"), 0)
    for layer in linear_layers(fields, head, num_labels):
        counts[layer.part] += layer.parameters
    learned_positions = fields["max_position_embeddings"] if fields["position"] == "learned" else 0
    counts["embeddings"] += vocab * narrow  # the stacks of an encoder-decoder share them
    for stack in stacks(fields):
        counts["embeddings"] += (learned_positions + fields["type_vocab_size"]) * narrow
        counts["norms"] += _stack_norms(fields, stack) * norm(fields, dim)
        counts["norms"] += norm(fields, narrow) if fields["embedding_norm"] else 0
        counts["attention"] += stack.layers * _scoring(fields) + _relative_table(fields)
        counts["cross_attention"] += stack.layers * _scoring(fields) if stack.crosses else 0
    if head in WORD_HEADS:
        counts["head"] += 0 if fields["tie_word_embeddings"] else vocab * narrow
        counts["head"] += vocab if fields["lm_head_bias"] else 0
        counts["head"] += norm(fields, narrow) if fields["family"] == "encoder" else 0
    return {**counts, "total": sum(counts.values())}


def forward_flops(
    config: Config,
    head: str,
    sequence_length: int,
    num_labels: int = 2,
    predicted_tokens: int | None = None,
    target_length: int | None = None,
) -> dict[str, int]:
    """Floating-point operations of one forward pass over one sequence, by part, and their `total`.

    A multiply-add counts as two. Only matrix products are counted: norms, softmax and activations cost a few
    operations a number. A training step costs about three times as much (Kaplan et al. 2020, section 2.1,
    arxiv.org/abs/2001.08361). `predicted_tokens` is how many positions get a score for each word; default: all.
    `target_length` is that of an encoder-decoder's decoder; default: as long as the source. A window saves nothing
    here: eager attention computes all scores and hides most.
    """
    fields = whole(config, head)
    source, target = sequence_length, sequence_length if target_length is None else target_length
    last = target if fields["family"] == "encoder-decoder" else source
    predicted = last if predicted_tokens is None else predicted_tokens
    tokens = {"sequence": source, "target": target, "last": last, "predicted": predicted, "one": 1}
    names = (
        "embeddings",
        "attention_projections",
        "attention_scores",
        "cross_attention_projections",
        "cross_attention_scores",
        "feed_forward",
        "pooler",
        "head",
    )
    flops = dict.fromkeys(names, 0)
    for layer in linear_layers(fields, head, num_labels):
        part = f"{layer.part}_projections" if layer.part.endswith("attention") else layer.part
        flops[part] += 2 * tokens[layer.tokens] * layer.inputs * layer.outputs
    for stack in stacks(fields):
        length = tokens[stack.tokens]
        flops["attention_scores"] += stack.layers * _scores(fields, length, length, stack.causal)
        if stack.crosses:
            flops["cross_attention_scores"] += stack.layers * _scores(fields, length, source, False, crosses=True)
    if head in WORD_HEADS:
        flops["head"] += 2 * predicted * fields["embedding_size"] * fields["vocab_size"]
    return {**flops, "total": sum(flops.values())}


def growth(config: Config, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """How the operations of attention and of the feed-forward networks grow with the sequence.

    For each length: `projections` (n·d²) and `scores` (n²·d) of attention, cross-attention included, and
    `feed_forward` (n·d²). `crossover` is the first length at which the scores cost more than everything that grows
    with n·d²; `attention_crossover` the first at which attention as a whole costs more than the feed-forward networks.
    None where it never does, as with linear attention.
    """
    rows = [{"length": length, **_body(config, length)} for length in lengths]
    return {
        "lengths": rows,
        "crossover": _first(lambda at: at["scores"] > at["projections"] + at["feed_forward"], config),
        "attention_crossover": _first(lambda at: at["scores"] + at["projections"] > at["feed_forward"], config),
    }


def _body(config: Config, length: int) -> dict[str, int]:
    flops = forward_flops(config, "base", length)
    return {
        "projections": flops["attention_projections"] + flops["cross_attention_projections"],
        "scores": flops["attention_scores"] + flops["cross_attention_scores"],
        "feed_forward": flops["feed_forward"],
    }


def _first(passed: Callable[[dict[str, int]], bool], config: Config, most: int = 1 << 24) -> int | None:
    """The smallest length at which the costs have `passed`, which they do once and for all."""
    low, high = 1, most
    if not passed(_body(config, high)):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passed(_body(config, middle)) else (middle + 1, high)
    return low


@dataclass(frozen=True)
class Stack:
    """A pile of equal layers."""

    prefix: str
    """Of its modules' names."""
    layers: int
    causal: bool
    crosses: bool
    """Whether its layers look at an encoder too."""
    tokens: str
    """`sequence` or `target`."""

    @property
    def sublayers(self) -> int:
        """Attention, feed-forward, and cross-attention."""
        return 3 if self.crosses else 2


def stacks(fields: Config) -> tuple[Stack, ...]:
    """The stacks of a completed config."""
    layers = fields["num_hidden_layers"]
    if fields["family"] != "encoder-decoder":
        return (Stack("model.", layers, fields["family"] == "decoder", False, "sequence"),)
    causal = not fields["bidirectional_decoder"]
    return (
        Stack("model.encoder.", layers, False, False, "sequence"),
        Stack("model.decoder.", fields["num_decoder_layers"], causal, True, "target"),
    )


def linear_layers(config: Config, head: str, num_labels: int = 2) -> list[LinearLayer]:
    """Every linear layer of the model with that head, by its name there; the output matrix over words is left out."""
    fields = completed(dict(config))
    layers = list(_body_layers(fields))
    dim = fields["hidden_size"]
    if fields["family"] == "encoder" and head not in UNPOOLED and not (head in POOLED_HEADS and pools_mean(fields)):
        layers.append(LinearLayer("model.pooler.dense", dim, dim, part="pooler", tokens="one"))
    return [*layers, *_head_layers(fields, head, num_labels)]


def pools_mean(config: Config) -> bool:
    """Whether heads on a whole text read the mean of an encoder's tokens."""
    return config.get("family", "encoder") == "encoder" and config.get("classifier_pooling") == "mean"


def _body_layers(fields: Config) -> Iterator[LinearLayer]:
    dim, narrow, inner = fields["hidden_size"], fields["embedding_size"], fields["intermediate_size"]
    for stack in stacks(fields):
        if narrow != dim:
            yield LinearLayer(
                f"{stack.prefix}embeddings.projection", narrow, dim, part="embeddings", tokens=stack.tokens
            )
        for index in range(stack.layers):
            layer = f"{stack.prefix}layers.{index}"
            yield from _attention_layers(fields, f"{layer}.attention", "attention", stack.tokens, stack.tokens)
            if stack.crosses:
                yield from _attention_layers(
                    fields, f"{layer}.cross_attention", "cross_attention", "target", "sequence"
                )
            names = ("intermediate", "gate") if fields["is_gated_act"] else ("intermediate",)
            for name in names:
                yield LinearLayer(
                    f"{layer}.feed_forward.{name}", dim, inner, fields["mlp_bias"], "feed_forward", stack.tokens
                )
            yield LinearLayer(
                f"{layer}.feed_forward.output", inner, dim, fields["mlp_bias"], "feed_forward", stack.tokens
            )


def _attention_layers(fields: Config, name: str, part: str, queries: str, keys: str) -> Iterator[LinearLayer]:
    dim, bias = fields["hidden_size"], fields["attention_bias"]
    wide = fields["num_attention_heads"] * fields["head_dim"]
    shared = fields["num_key_value_heads"] * fields["head_dim"]
    yield LinearLayer(f"{name}.query", dim, wide, bias, part, queries)
    yield LinearLayer(f"{name}.key", dim, shared, bias, part, keys)
    yield LinearLayer(f"{name}.value", dim, shared, bias, part, keys)
    yield LinearLayer(f"{name}.output", wide, dim, bias, part, queries)


def _head_layers(fields: Config, head: str, num_labels: int) -> Iterator[LinearLayer]:
    dim = fields["hidden_size"]
    if fields["family"] == "encoder" and head in WORD_HEADS:
        yield LinearLayer("lm_head.dense", dim, fields["embedding_size"], part="head", tokens="predicted")
    if head == "pretraining":
        yield LinearLayer("seq_relationship", dim, 2, part="head", tokens="one")
    elif head == "causal_lm_with_value":
        yield LinearLayer("value_head", dim, 1, part="head", tokens="last")
    elif head == "seq2seq_lm" and fields["length_prediction"]:
        yield LinearLayer("length_head", dim, fields["max_position_embeddings"], part="head", tokens="one")
    elif head == "sequence_classification":
        yield LinearLayer("classifier", dim, num_labels, part="head", tokens="one")
    elif head == "token_classification":
        yield LinearLayer("classifier", dim, num_labels, part="head", tokens="last")
    elif head == "question_answering":
        yield LinearLayer("qa_outputs", dim, 2, part="head", tokens="last")
    elif head == "multiple_choice":
        yield LinearLayer("classifier", dim, 1, part="head", tokens="one")
    elif head == "reward":
        yield LinearLayer("score", dim, 1, part="head", tokens="one")


def norm(fields: Config, width: int) -> int:
    """Weights of one norm: a gain, and LayerNorm's bias."""
    return width * (2 if fields["norm_type"] == "layer_norm" and fields["norm_bias"] else 1)


def _scoring(fields: Config) -> int:
    """Weights of one attention beside its projections."""
    heads, head_dim = fields["num_attention_heads"], fields["head_dim"]
    sizes = {"general": heads * head_dim * head_dim, "additive": heads * head_dim, "cosine": heads}
    normed = 2 * norm(fields, head_dim) if fields["qk_norm"] else 0
    return sizes.get(fields["attention_scoring"], 0) + normed


def other_biases(config: Config, head: str) -> int:
    """Biases outside the linear layers: those of norms and of the output matrix."""
    fields = completed(dict(config))
    dim, narrow = fields["hidden_size"], fields["embedding_size"]
    count = fields["vocab_size"] if head in WORD_HEADS and fields["lm_head_bias"] else 0
    count += _norm_bias(fields, narrow) if head in WORD_HEADS and fields["family"] == "encoder" else 0
    for stack in stacks(fields):
        attentions = stack.layers * (2 if stack.crosses else 1)
        count += _stack_norms(fields, stack) * _norm_bias(fields, dim)
        count += _norm_bias(fields, narrow) if fields["embedding_norm"] else 0
        count += 2 * attentions * _norm_bias(fields, fields["head_dim"]) if fields["qk_norm"] else 0
    return count


def _norm_bias(fields: Config, width: int) -> int:
    return norm(fields, width) - width


def _stack_norms(fields: Config, stack: Stack) -> int:
    """Norms of the hidden width: one a sublayer, two in a sandwich, one at the end where sums are not normalised."""
    each = 2 if fields["norm_position"] == "sandwich" else 1
    return stack.layers * stack.sublayers * each + (fields["norm_position"] != "post")


def _relative_table(fields: Config) -> int:
    """Weights of a stack's table of distances. Raffel et al. 2020, section 2.1, arxiv.org/abs/1910.10683."""
    buckets: int = fields["relative_attention_num_buckets"]
    return buckets * fields["num_attention_heads"] if fields["position"] == "relative" else 0


def _scores(fields: Config, queries: int, keys: int, causal: bool, crosses: bool = False) -> int:
    """Operations of one attention between its projections; what `crosses` is never linear."""
    heads, head_dim = fields["num_attention_heads"], fields["head_dim"]
    if fields["attention_pattern"] == "linear" and not crosses:
        return int(heads * _linear_scores(queries, head_dim, causal))
    weighted: int = 2 * heads * queries * keys * head_dim  # a product for each pair, and each pair's share of a value
    before = 2 * heads * queries * head_dim * head_dim if fields["attention_scoring"] == "general" else 0
    return before + 2 * weighted


def _linear_scores(length: int, head_dim: int, causal: bool) -> int:
    """Operations of one head of linear attention: a sum of outer products, and one product with it for each token."""
    if not causal or length == 1:
        return 4 * length * head_dim * head_dim + 2 * length * head_dim
    filled = -(-length // CHUNK) * CHUNK  # within a chunk the pairs are written out
    return filled * (4 * CHUNK * head_dim + 4 * head_dim * head_dim)


def whole(config: Config, head: str) -> dict[str, Any]:
    """The config with its defaults, refused if the model's own constructor would refuse it. Raises ValueError."""
    if sentences := contradictions({**DEFAULTS, **config}):
        raise ValueError("\n".join(sentences))
    fields = completed(dict(config))
    heads = HEADS[fields["family"]]
    if head not in heads:
        raise ValueError(f"head is {head!r}, must be one of: {', '.join(heads)}")
    return fields
