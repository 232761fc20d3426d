"""The grid of the tuners' contract: families, heads, one kind of batch, and what each tuner makes learn by hand arithmetic.

Sizes: width D, inner width INNER of the feed-forward network (GPT-2's is 4 D), L layers a stack, V words, P positions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS
from pipelines.models import opening
from tests import tiny

D, INNER, L, V, P = 32, 48, 2, 96, 48
CLASSES = ("entailment", "neutral", "contradiction")
HEADS = {
    "masked_lm": Head("masked_lm"),
    "causal_lm": Head("causal_lm"),
    "seq2seq_lm": Head("seq2seq_lm"),
    "sequences": Head("sequence_classification", CLASSES),
    "tokens": Head("token_classification", CLASSES),
    "spans": Head("question_answering"),
    "number": tiny.NUMBER,
}
DECIDING = ("sequences", "tokens", "spans", "number")
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "finery-encoder": ("finery", {"family": "encoder"}, "masked_lm"),
    "finery-decoder": ("finery", {"family": "decoder"}, "causal_lm"),
    "finery-encoder-decoder": ("finery", {"family": "encoder-decoder"}, "seq2seq_lm"),
    "bert": ("bert", {}, "masked_lm"),
    "gpt2": ("gpt2", {}, "causal_lm"),
    "t5": ("t5", {}, "seq2seq_lm"),
    "distilbert": ("distilbert", {}, "masked_lm"),
}
"""Model type, words, and the head that the family is pretrained with."""
HEADS_OF = {
    "finery-encoder": ("masked_lm", *DECIDING),
    "bert": ("masked_lm", *DECIDING),
    "distilbert": ("masked_lm", "sequences", "number"),
}
"""The heads that a family is tried with, where they are not its language head, sequences, tokens and spans."""
EVERYWHERE = [
    (family, head)
    for family, (_, _, language) in FAMILIES.items()
    for head in HEADS_OF.get(family, (language, "sequences", "tokens", "spans"))
]


def block(tuner: str) -> Any:
    """The tuner with its defaults; a fusion mixes two stages."""
    return TUNERS.load(tuner)(name=tuner, **({"adapters": ("first", "second")} if tuner == "fusion" else {}))


def words_of(family: str) -> dict[str, Any]:
    """The architecture's words, as a recipe would resolve them."""
    model_type, words, _ = FAMILIES[family]
    return tiny.shape(model_type, **words)


LATE = {
    (
        "prefix",
        "t5",
        "tokens",
    ): "needs an attention that takes keys and values from outside, but T5EncoderModel has none"
}
"""What is refused only once the model is built, and why: transformers' T5 for tokens is an encoder alone."""
ALL = [(tuner, *place) for tuner in TUNERS for place in EVERYWHERE]
REFUSED = {case for case in ALL if block(case[0]).misfit(words_of(case[1]), HEADS[case[2]].kind) is not None}
"""What is refused by the words of the architecture."""
CASES = [case for case in ALL if case not in REFUSED and case not in LATE]
"""Where a tuner can serve."""


class Bases:
    """Models pretrained on a language head, each lying in a folder with the head of a case; copies are handed out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built: dict[tuple[str, str], Any] = {}

    def model(self, family: str, head: str) -> Any:
        """As a stage opens it: `finery_new_modules` are those that pretraining did not bring."""
        if (family, head) not in self.built:
            self.built[family, head] = self._build(family, head)
        return copy.deepcopy(self.built[family, head])

    def _build(self, family: str, head: str) -> Any:
        model_type, words, language = FAMILIES[family]
        pretrained = self.folder / family
        if not pretrained.exists():
            made = tiny.build(model_type, HEADS[language], seed=5, **words)
            tiny.disturb(made, by=0.05)
            made.save_pretrained(pretrained)
        opened = opening.open_folder(pretrained, HEADS[head], seed=1)
        if not opened.finery_new_modules:
            return opened
        complete = self.folder / f"{family}-{head}"  # the head too is to be found again
        opened.save_pretrained(complete)
        again = opening.open_folder(complete, HEADS[head], seed=2)
        assert again.finery_new_modules == []
        again.finery_new_modules = opened.finery_new_modules
        return again

    def tuned(self, tuner: str, family: str, head: str, **words: Any) -> tuple[Any, Any]:
        """(the block, what it makes of the case's model)."""
        chosen = block(tuner).model_copy(update=words)
        model = self.model(family, head)
        if tuner == "fusion":
            chosen = chosen.given({name: self._adapter(family, head, name) for name in chosen.adapters})
        torch.manual_seed(0)
        return chosen, chosen.apply(model)

    def _adapter(self, family: str, head: str, name: str) -> Path:
        folder = self.folder / f"adapter-{name}-{family}-{head}"
        if not folder.exists():
            tuner = block("adapter")
            tuned = tuner.apply(self.model(family, head))
            tiny.disturb(tuned, seed=len(name), by=0.05)
            tuner.save(tuned, folder)
        return folder


def batch(model: Any, head: str, seed: int = 0, rows: int = 4, length: int = 10) -> dict[str, Any]:
    """Token ids that end in the model's own last token, the second row padded on the right; a target where one is read."""
    inputs = tiny.batch(rows, length, seed)
    last = inputs["attention_mask"].sum(1) - 1
    if model.config.eos_token_id is not None:
        inputs["input_ids"][torch.arange(rows), last] = model.config.eos_token_id
    if head == "seq2seq_lm":
        inputs["decoder_input_ids"] = tiny.batch(rows, 6, seed + 100)["input_ids"].clamp(min=5)
    return inputs


def said(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The model's answer: logits, or those of both ends of a span side by side."""
    outputs = model(**inputs)
    return outputs.logits if "logits" in outputs else torch.stack([outputs.start_logits, outputs.end_logits], -1)


def answers(model: Any, head: str, seed: int = 0) -> torch.Tensor:
    """What the model says in evaluation mode."""
    with torch.no_grad():
        return said(model.eval(), batch(model, head, seed))


def loss(model: Any, head: str, seed: int = 0) -> torch.Tensor:
    """Squared distance of the answers from random numbers, so that every answer counts."""
    found = said(model, batch(model, head, seed)).float()
    return (found - torch.randn(found.shape, generator=torch.Generator().manual_seed(seed))).square().mean()


@dataclass(frozen=True)
class Shape:
    """What the formulas are made of."""

    matrices: tuple[tuple[int, int], ...]
    """(in, out) of each linear layer of the body."""
    attentions: int
    feed_forwards: int
    keys_and_values: int
    """What attention's projections to keys and values give, over all layers; with the query where they are one matrix."""
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


def learnt(tuner: Any, family: str, head: str) -> int:
    """How many weights learn, by each paper's formula. Raises KeyError for a tuner without one: write it here."""
    shape, new, word_head = shape_of(family, head), new_weights(family, head), language_head(family, head)
    formulas = {
        "full": lambda: shape.whole + new + word_head,
        "last_layer": lambda: new + word_head,
        "bitfit": lambda: shape.biases + new + (D + D + V if word_head else 0),
        "lora": lambda: tuner.r * sum(a + b for a, b in shape.matrices) + new,
        "qlora": lambda: tuner.r * sum(a + b for a, b in shape.matrices) + new,
        "ia3": lambda: shape.keys_and_values + shape.inner + new,
        "adapter": lambda: (shape.attentions + shape.feed_forwards) * bottleneck(tuner) + new,
        "fusion": lambda: (shape.attentions + shape.feed_forwards) * (3 * D * D + 2 * D) + new,
        "prefix": lambda: tuner.num_virtual_tokens * shape.decoding * 2 * D + new,
        "prompt": lambda: tuner.num_virtual_tokens * D + new,
        "p_tuning": lambda: tuner.num_virtual_tokens * D + 3 * (D * D + D) + new,
    }
    return formulas[tuner.name]()


def bottleneck(tuner: Any) -> int:
    """Down and up, each with biases."""
    size = max(1, int(D // tuner.reduction_factor))
    return D * size + size + size * D + D
