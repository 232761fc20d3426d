"""How many weights a recurrent model has, how many operations a sequence costs and what a training step keeps.

The counterpart of `arithmetic` for `family: rnn`: neither torch nor transformers is imported, and nothing here travels
with a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .recurrent_rules import RULES, Config

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Vectors that a cell computes from its input and its state."""
KEPT_BY_STEP = {"lstm": 7, "gru": 7, "rnn": 2}
"""Numbers that a step keeps for the backward pass, for each of its state, beside its input: gates, states, their
tanh."""
KEPT_BY_SEQUENCE = {"lstm": 20, "gru": 7, "rnn": 1}
"""The same where torch takes a sequence at once: oneDNN's LSTM, which a CPU runs, keeps a workspace."""
WORD_HEADS = ("causal_lm", "seq2seq_lm", "bidirectional_lm")


@dataclass(frozen=True)
class Cells:
    """One layer of cells."""

    part: str
    inputs: int
    width: int
    """Of one direction's state."""
    directions: int
    tokens: str
    """`sequence` or `target`."""
    by_step: bool = False
    """Whether tokens are taken one by one."""

    def weights(self, gates: int) -> int:
        """Two matrices and two biases for each direction."""
        return self.directions * gates * self.width * (self.inputs + self.width + 2)

    def flops(self, gates: int) -> int:
        """Operations a token; a multiply-add counts as two."""
        return 2 * self.directions * gates * self.width * (self.inputs + self.width)


def cells(fields: Config) -> Iterator[Cells]:
    """The layers of a completed config."""
    dim, narrow = fields["hidden_size"], fields["embedding_size"]
    directions = 2 if fields["bidirectional"] else 1
    stack = fields["stack"]
    first = "decoder" if stack == "decoder" else "encoder"
    above = dim // directions if fields["separate_directions"] else dim
    for index in range(fields["num_hidden_layers"]):
        yield Cells(first, narrow if index == 0 else above, dim // directions, directions, "sequence")
    if stack == "encoder-decoder":
        fed = dim if fields["input_feeding"] else 0
        for index in range(fields["num_decoder_layers"]):
            inputs = narrow + fed if index == 0 else dim
            yield Cells("decoder", inputs, dim, 1, "target", by_step=fields["input_feeding"])


def parameter_count(config: Config, head: str, num_labels: int = 2) -> dict[str, int]:
    """Weights by module, and their `total`. A matrix that two modules share is counted once, with the embeddings."""
    fields = RULES.completed(config)
    dim, narrow, gates = fields["hidden_size"], fields["embedding_size"], GATES[fields["cell"]]
    counts = {"embeddings": fields["vocab_size"] * narrow, "encoder": 0, "decoder": 0, "attention": 0, "head": 0}
    for layer in cells(fields):
        counts[layer.part] += layer.weights(gates)
    counts["attention"] = _attention_weights(fields)
    if head in WORD_HEADS:
        width = _predicting(fields, head)
        counts["head"] += width * narrow if narrow != width else 0
        counts["head"] += 0 if fields["tie_word_embeddings"] else fields["vocab_size"] * narrow
    elif head == "sequence_classification":
        counts["head"] += (3 * dim + 1) * num_labels
    return {**counts, "total": sum(counts.values())}


def _predicting(fields: Config, head: str) -> int:
    """Width of what predicts a word: of a bidirectional language model one direction's state."""
    return int(fields["hidden_size"] // (2 if head == "bidirectional_lm" else 1))


def _attention_weights(fields: Config) -> int:
    dim, scoring = fields["hidden_size"], fields["attention_scoring"]
    if scoring == "none":
        return 0
    scored = {"dot_product": 0, "general": dim * dim, "additive": 2 * dim * dim + dim}[scoring]
    return int(scored + 2 * dim * dim)


def forward_flops(
    config: Config,
    head: str,
    sequence_length: int,
    num_labels: int = 2,
    predicted_tokens: int | None = None,
    target_length: int | None = None,
) -> dict[str, int]:
    """Floating-point operations of one forward pass over one sequence, by part, and their `total`; matrix products
    alone, as `arithmetic.forward_flops` counts them."""
    fields = RULES.completed(config)
    dim, narrow, gates = fields["hidden_size"], fields["embedding_size"], GATES[fields["cell"]]
    source, target = sequence_length, sequence_length if target_length is None else target_length
    last = target if fields["stack"] == "encoder-decoder" else source
    both = 2 if head == "bidirectional_lm" else 1  # every token predicts the one behind it and the one before
    predicted = both * last if predicted_tokens is None else predicted_tokens
    flops = {"encoder": 0, "decoder": 0, "attention": 0, "head": 0}
    for layer in cells(fields):
        flops[layer.part] += layer.flops(gates) * (target if layer.tokens == "target" else source)
    if fields["attention_scoring"] != "none":
        flops["attention"] += 2 * target * (2 * dim * dim + 2 * source * dim)
        flops["attention"] += 0 if fields["attention_scoring"] == "dot_product" else 2 * source * dim * dim
        flops["attention"] += 2 * target * dim * dim if fields["attention_scoring"] == "additive" else 0
    if head in WORD_HEADS:
        width = _predicting(fields, head)
        flops["head"] += 2 * predicted * narrow * fields["vocab_size"]
        flops["head"] += 2 * last * dim * narrow if narrow != width else 0
    elif head == "sequence_classification":
        flops["head"] += 2 * 3 * dim * num_labels
    return {**flops, "total": sum(flops.values())}


def kept_values(config: Config, source: int, target: int) -> int:
    """Numbers that the forward pass of one sequence keeps for the backward pass, the head left out."""
    fields = RULES.completed(config)
    dim, cell = fields["hidden_size"], fields["cell"]
    lengths = {"sequence": source, "target": target}
    kept = 0
    for layer in cells(fields):
        by_state = (KEPT_BY_STEP if layer.by_step else KEPT_BY_SEQUENCE)[cell]
        read = layer.inputs * (layer.directions if fields["separate_directions"] else 1)
        kept += lengths[layer.tokens] * (read + by_state * layer.width * layer.directions)
    dropped = [fields["embedding_dropout_prob"]] + [fields["hidden_dropout_prob"]] * fields["num_hidden_layers"]
    kept += source * sum(dim for probability in dropped if probability)
    if fields["stack"] == "encoder-decoder":
        kept += target * sum(dim for probability in dropped if probability)
        kept += _kept_by_attention(fields, source, target)
    return int(kept)


def _kept_by_attention(fields: Config, source: int, target: int) -> int:
    dim, scoring = fields["hidden_size"], fields["attention_scoring"]
    if scoring == "none":
        return 0
    pairs = target * source * (dim if scoring == "additive" else 0)
    return int(pairs + target * (2 * source + 4 * dim) + 2 * source * dim)


def whole(config: Config) -> dict[str, Any]:
    """The config with its defaults, refused if the model's own constructor would refuse it. Raises ValueError."""
    if sentences := RULES.contradictions(config):
        raise ValueError("\n".join(sentences))
    return RULES.completed(config)
