"""The words of `family: rnn` as plain data, and what contradicts what: no torch, no transformers.

What each word means stands at the fields of `configuration_finery_rnn.FineryRnnConfig`.
"""

from collections.abc import Iterator
from typing import Any

from .field_rules import TOKENS, Config, FieldRules, Finding, choice, count, flag, positive, probability

STACKS = ("encoder-decoder", "encoder", "decoder")
CELLS = ("lstm", "gru", "rnn")
SCORINGS = ("none", "additive", "dot_product", "general")
DEEPEST = 10_000

FIELDS = {
    "stack": choice("encoder-decoder", STACKS),
    "cell": choice("lstm", CELLS),
    "vocab_size": count(30522),
    "hidden_size": count(512),
    "embedding_size": count(None, "to use hidden_size"),
    "num_hidden_layers": count(2, most=DEEPEST),
    "num_decoder_layers": count(None, "for as many as the encoder has", most=DEEPEST),
    "bidirectional": flag(None, "for both directions in an encoder"),
    "separate_directions": flag(False),
    "attention_scoring": choice(None, SCORINGS, "for additive in an encoder-decoder"),
    "input_feeding": flag(None, "to do it where there is attention"),
    "hidden_dropout_prob": probability(0.1),
    "embedding_dropout_prob": probability(None, "to use hidden_dropout_prob"),
    "word_dropout_prob": probability(0.0),
    "weight_dropout_prob": probability(0.0),
    "variational_dropout": flag(False),
    "classifier_dropout": probability(None, "to use hidden_dropout_prob"),
    "tie_word_embeddings": flag(True),
    "initializer_range": positive(0.1),
    "use_cache": flag(True),
    **TOKENS,
}


def complete(full: dict[str, Any]) -> dict[str, Any]:
    """What is usual, written out where a field is null."""
    both = full["stack"] == "encoder-decoder"
    scoring = full["attention_scoring"] or ("additive" if both else "none")
    usual = {
        "embedding_size": full["hidden_size"] // (2 if full["separate_directions"] else 1),
        "num_decoder_layers": full["num_hidden_layers"],
        "bidirectional": full["stack"] != "decoder",
        "attention_scoring": scoring,
        "input_feeding": scoring != "none",
        "embedding_dropout_prob": full["hidden_dropout_prob"],
        "classifier_dropout": full["hidden_dropout_prob"],
    }
    return full | {name: value for name, value in usual.items() if full[name] is None}


def _stack(fields: Config) -> Iterator[Finding]:
    """Words that only one stack has a use for."""
    stack = fields["stack"]
    if stack == "decoder" and fields["bidirectional"]:
        yield (
            ("bidirectional", "stack"),
            "bidirectional is true, but a decoder that reads from the end would see the words that it must predict; "
            "leave it out, or use stack: encoder",
        )
    if stack != "encoder-decoder" and fields["attention_scoring"] != "none":
        yield (
            ("attention_scoring", "stack"),
            f"attention_scoring '{fields['attention_scoring']}' lets a decoder look at an encoder, but the stack is "
            f"'{stack}'; leave it out, or use stack: encoder-decoder",
        )
    if stack != "encoder-decoder" and fields["num_decoder_layers"] != fields["num_hidden_layers"]:
        yield (
            ("num_decoder_layers", "stack"),
            f"num_decoder_layers is for stack: encoder-decoder, but the stack is '{stack}'; leave it out",
        )


def _sizes(fields: Config) -> Iterator[Finding]:
    if fields["bidirectional"] and fields["hidden_size"] % 2:
        yield (
            ("hidden_size", "bidirectional"),
            f"hidden_size {fields['hidden_size']} cannot be shared by two directions; choose an even number, or "
            "bidirectional: false",
        )


def _separate(fields: Config) -> Iterator[Finding]:
    if fields["separate_directions"] and not (fields["stack"] == "encoder" and fields["bidirectional"]):
        given = "bidirectional: false" if fields["stack"] == "encoder" else f"stack '{fields['stack']}'"
        yield (
            ("separate_directions", "stack"),
            f"separate_directions is for an encoder that reads from both ends, but this one has {given}; leave it "
            "out, or use stack: encoder",
        )


def _feeding(fields: Config) -> Iterator[Finding]:
    if fields["input_feeding"] and fields["attention_scoring"] == "none":
        yield (
            ("input_feeding", "attention_scoring"),
            "input_feeding is true, but without attention there is nothing to feed; leave it out, or set "
            "attention_scoring",
        )


RULES = FieldRules(FIELDS, complete, (_stack, _sizes, _separate, _feeding))
