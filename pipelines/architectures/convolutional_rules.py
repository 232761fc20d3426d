"""The words of `family: cnn` as plain data, and what contradicts what: no torch, no transformers.

What each word means stands at the fields of `configuration_finery_cnn.FineryCnnConfig`.
"""

from collections.abc import Iterator
from typing import Any

from .field_rules import TOKENS, Config, FieldRules, Finding, choice, count, flag, positive, probability

SCORINGS = ("dot_product",)
DEEPEST = 10_000

FIELDS = {
    "vocab_size": count(30522),
    "hidden_size": count(512),
    "embedding_size": count(None, "to use hidden_size"),
    "num_hidden_layers": count(4, most=DEEPEST),
    "num_decoder_layers": count(None, "for as many as the encoder has", most=DEEPEST),
    "kernel_size": count(3, most=DEEPEST),
    "max_position_embeddings": count(512),
    "attention_scoring": choice("dot_product", SCORINGS),
    "hidden_dropout_prob": probability(0.1),
    "tie_word_embeddings": flag(True),
    "initializer_range": positive(0.1),
    "use_cache": flag(True),
    **TOKENS,
}


def complete(full: dict[str, Any]) -> dict[str, Any]:
    """What is usual, written out where a field is null."""
    usual = {"embedding_size": full["hidden_size"], "num_decoder_layers": full["num_hidden_layers"]}
    return full | {name: value for name, value in usual.items() if full[name] is None}


def _kernel(fields: Config) -> Iterator[Finding]:
    if fields["kernel_size"] % 2 == 0:
        yield (
            ("kernel_size",),
            f"is {fields['kernel_size']}, but a place of the encoder stands in the middle of its window; choose an odd "
            "number",
        )


RULES = FieldRules(FIELDS, complete, (_kernel,))
