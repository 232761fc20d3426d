"""How many weights each tuner lets learn, by the formula of its paper, against the built model.

Sizes as in the tuners' contract: width D, inner width INNER of the feed-forward network (GPT-2's is 4 D), L layers a
stack, V words, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.contracts import tuner_cases as cases
from tests.contracts.tuner_cases import INNER, D, L, P, V, bases
from tests.covering import covering

__all__ = ["bases"]


@dataclass(frozen=True)
class Shape:
    """What the formulas are made of."""

    matrices: tuple[tuple[int, int], ...]
    """(in, out) of each linear layer of the body."""
    attentions: int
    feed_forwards: int
    keys_and_values: int
    """What attention's projections to keys and values give, over all layers; with the query where they are one
    matrix."""
    inner: int
    """What the second matrices of all feed-forward networks take."""
    biases: int
    """Of the body."""
    whole: int
    """All weights of the body."""
    decoding: int
    """Layers of the stack that a prefix precedes."""


def shape_of(family: str, head: str) -> Shape:
    """By hand, from the papers' and the code's own description of a layer."""
    square, forth, back = (D, D), (D, INNER), (INNER, D)
    if family == "gpt2":  # one matrix for query, key and value
        layer = ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D))
        biases = L * (3 * D + D + 4 * D + D + 2 * D) + D
        whole = (V + P) * D + L * (sum(a * b for a, b in layer) + 9 * D + 4 * D) + 2 * D
        return Shape(layer * L, L, L, L * 3 * D, L * 4 * D, biases, whole, L)
    encoder = (square,) * 4 + (forth, back)
    decoder = (square,) * 8 + (forth, back)
    if family == "t5":
        decoders = 0 if head == "tokens" else L  # transformers' class for tokens has the encoder alone
        matrices = encoder * L + decoder * decoders
        norms = 2 * L * D + D + (3 * L * D + D if decoders else 0)
        distances = 32 * 2 * (2 if decoders else 1)
        attentions = L + 2 * decoders
        whole = V * D + sum(a * b for a, b in matrices) + norms + distances
        return Shape(
            matrices, attentions, L + decoders, attentions * 2 * D, (L + decoders) * INNER, 0, whole, decoders or L
        )
    if family == "finery-encoder-decoder":
        matrices = encoder * L + decoder * L
        biases = L * (4 * D + INNER + D + 2 * D) + L * (8 * D + INNER + D + 3 * D)
        norm_weights = L * 2 * D + L * 3 * D
        whole = (V + 2 * P) * D + sum(a * b for a, b in matrices) + biases + norm_weights
        return Shape(matrices, 3 * L, 2 * L, 3 * L * 2 * D, 2 * L * INNER, biases, whole, L)
    biases, others = L * (4 * D + INNER + D + 2 * D), L * 2 * D + (V + P) * D
    if family in ("bert", "finery-encoder", "distilbert"):  # a norm after the embeddings, and kinds of texts
        biases, others = biases + D, others + D + (0 if family == "distilbert" else 2 * D)
    matrices = encoder * L
    whole = sum(a * b for a, b in matrices) + biases + others
    return Shape(matrices, L, L, L * 2 * D, L * INNER, biases, whole, L)


def new_weights(family: str, head: str) -> int:
    """Weights of the modules that pretraining did not bring."""
    if head == "spans":
        return D * 2 + 2
    if head == "tokens":
        return D * 3 + 3
    if head in ("sequences", "number"):
        outputs = 1 if head == "number" else 3
        pooled = D * D + D + D * outputs + outputs
        return {"finery-decoder": D * 3 + 3, "finery-encoder-decoder": D * 3 + 3, "gpt2": D * 3}.get(family, pooled)
    return 0


def language_head(family: str, head: str) -> int:
    """Weights of a language model's head beside the tied matrix: BERT's transformation, its norm, and a bias a word."""
    return D * D + D + 2 * D + V if head == "masked_lm" else 0


FORMULAS = {
    "full": lambda tuner, shape, new, word_head: shape.whole + new + word_head,
    "last_layer": lambda tuner, shape, new, word_head: new + word_head,
    "bitfit": lambda tuner, shape, new, word_head: shape.biases + new + (D + D + V if word_head else 0),
    "lora": lambda tuner, shape, new, word_head: tuner.r * sum(a + b for a, b in shape.matrices) + new,
    "qlora": lambda tuner, shape, new, word_head: tuner.r * sum(a + b for a, b in shape.matrices) + new,
    "ia3": lambda tuner, shape, new, word_head: shape.keys_and_values + shape.inner + new,
    "adapter": lambda tuner, shape, new, word_head: (shape.attentions + shape.feed_forwards) * bottleneck(tuner) + new,
    "fusion": lambda tuner, shape, new, word_head: (shape.attentions + shape.feed_forwards) * (3 * D * D + 2 * D) + new,
    "prefix": lambda tuner, shape, new, word_head: tuner.num_virtual_tokens * shape.decoding * 2 * D + new,
    "prompt": lambda tuner, shape, new, word_head: tuner.num_virtual_tokens * D + new,
    "p_tuning": lambda tuner, shape, new, word_head: tuner.num_virtual_tokens * D + 3 * (D * D + D) + new,
}
"""From the tuner, the shape of the model, the weights that pretraining did not bring and those of a masked-LM head."""
CASES = [case for case in cases.CASES if case[0] in FORMULAS]


def bottleneck(tuner: Any) -> int:
    """Down and up, each with biases."""
    size = max(1, int(D // tuner.reduction_factor))
    return D * size + size + size * D + D


@pytest.mark.parametrize(("tuner", "family", "head"), covering(CASES, ways=cases.ways_of))
def test_what_learns_is_what_the_formula_counts(tuner: str, family: str, head: str, bases: cases.Bases) -> None:
    block, model = bases.tuned(tuner, family, head)
    expected = FORMULAS[tuner](block, shape_of(family, head), new_weights(family, head), language_head(family, head))
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == expected
