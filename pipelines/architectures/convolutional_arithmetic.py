"""How many weights a convolutional model has, how many operations a sequence costs and what a training step keeps.

The counterpart of `arithmetic` for `family: cnn`: neither torch nor transformers is imported, and nothing here travels
with a checkpoint.
"""

from .convolutional_rules import RULES, Config


def parameter_count(config: Config, head: str, num_labels: int = 2) -> dict[str, int]:
    """Weights by module, and their `total`. A matrix that two modules share is counted once, with the embeddings."""
    fields = RULES.completed(config)
    dim, narrow, vocab = fields["hidden_size"], fields["embedding_size"], fields["vocab_size"]
    around = dim * narrow + dim + narrow * dim + narrow  # into the layers' width and out of it
    layer = 2 * dim * (dim * fields["kernel_size"] + 1)
    counts = {
        "embeddings": vocab * narrow + 2 * fields["max_position_embeddings"] * narrow,
        "encoder": fields["num_hidden_layers"] * layer + around,
        "decoder": fields["num_decoder_layers"] * layer + around,
        "attention": fields["num_decoder_layers"] * around,
        "head": vocab * narrow if head == "seq2seq_lm" and not fields["tie_word_embeddings"] else 0,
    }
    return {**counts, "total": sum(counts.values())}


def forward_flops(
    config: Config,
    head: str,
    sequence_length: int,
    num_labels: int = 2,
    predicted_tokens: int | None = None,
    target_length: int | None = None,
) -> dict[str, int]:
    """Floating-point operations of one forward pass over one sequence, by part, and their `total`; products alone, as
    `arithmetic.forward_flops` counts them."""
    fields = RULES.completed(config)
    dim, narrow, kernel = fields["hidden_size"], fields["embedding_size"], fields["kernel_size"]
    source, target = sequence_length, sequence_length if target_length is None else target_length
    predicted = target if predicted_tokens is None else predicted_tokens
    layer, around, deep = 4 * dim * dim * kernel, 4 * dim * narrow, fields["num_decoder_layers"]
    flops = {
        "encoder": source * (fields["num_hidden_layers"] * layer + around),
        "decoder": target * (deep * layer + around),
        "attention": deep * target * (around + 4 * source * narrow),
        "head": 2 * predicted * narrow * fields["vocab_size"] if head == "seq2seq_lm" else 0,
    }
    return {**flops, "total": sum(flops.values())}


def kept_values(config: Config, source: int, target: int) -> int:
    """Numbers that the forward pass of one sequence keeps for the backward pass, the head left out."""
    fields = RULES.completed(config)
    dim, narrow = fields["hidden_size"], fields["embedding_size"]
    dropped = 1 if fields["hidden_dropout_prob"] else 0
    layer = dim * (1 + 2 + dropped)  # the convolution's input, the gate's two halves, the dropout's mask
    attention = 2 * narrow + 2 * source + dim
    kept = source * (fields["num_hidden_layers"] * layer + (2 + dropped) * narrow + dim)
    kept += target * (fields["num_decoder_layers"] * (layer + attention) + (1 + 2 * dropped) * narrow + dim)
    return int(kept)
