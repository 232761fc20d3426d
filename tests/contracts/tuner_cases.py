"""The grid of the tuners' contract: families, heads, and one kind of batch.

Sizes: width D, inner width INNER of the feed-forward network (GPT-2's is 4 D), L layers a stack, V words, P positions.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS
from pipelines.models import opening
from tests import tiny
from tests.covering import covering

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
GRID = [
    *((family, language) for family, (_, _, language) in FAMILIES.items() if family != "distilbert"),
    *((family, "sequences") for family in FAMILIES),
    ("bert", "tokens"),
    ("t5", "tokens"),
    ("finery-decoder", "spans"),
    ("t5", "spans"),
    ("finery-encoder", "number"),
]
"""Every family with its language head and as a classifier, and every other head."""


def block(tuner: str) -> Any:
    """The tuner as its first example writes it; without one, with its defaults."""
    example = next(iter(TUNERS.load(tuner).recipe_examples), f"{{name: {tuner}}}")
    keys = YAML(typ="safe").load(example)
    return TUNERS.load(tuner)(**{key: tuple(each) if isinstance(each, list) else each for key, each in keys.items()})


def words_of(family: str) -> dict[str, Any]:
    """The architecture's words, as a recipe would resolve them."""
    model_type, words, _ = FAMILIES[family]
    return tiny.shape(model_type, **words)


CASES = [
    (tuner, family, head)
    for tuner in TUNERS
    for family, head in GRID
    if block(tuner).misfit(words_of(family), HEADS[head].kind) is None
]
"""Where a tuner can serve, by the words of the architecture."""


def ways_of(tuner: str, family: str, head: str) -> set[Any]:
    """What decides how a tuner works: whose modules it meets, and whether the head was pretrained or is new."""
    build = "bert" if family == "distilbert" else FAMILIES[family][0]
    whole = (family, head) != ("t5", "tokens")  # transformers' class for tokens has no decoder
    return {(tuner, head in DECIDING), (family, head), *([(tuner, build)] if whole else [])}


every_way = pytest.mark.parametrize(("tuner", "family", "head"), covering(CASES, ways=ways_of))
"""Each tuner on each build of a model, and each family with each head."""


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
        """(the block, what it makes of the case's model); a test skips where the built model turns out to be unfit."""
        chosen = block(tuner).model_copy(update=words)
        model = self.model(family, head)
        chosen = chosen.given({name: self._adapter(family, head, name) for name in chosen.stages})
        torch.manual_seed(0)
        try:
            return chosen, chosen.apply(model)
        except IncompatibleError as error:  # known only once the model is built
            pytest.skip(str(error))

    def _adapter(self, family: str, head: str, name: str) -> Path:
        folder = self.folder / f"adapter-{name}-{family}-{head}"
        if not folder.exists():
            tuner = block("adapter")
            tuned = tuner.apply(self.model(family, head))
            tiny.disturb(tuned, seed=len(name), by=0.05)
            tuner.save(tuned, folder)
        return folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


def batch(model: Any, head: str, seed: int = 0, rows: int = 4, length: int = 10) -> dict[str, Any]:
    """Token ids that end in the model's own last token, the second row padded on the right; a target where one is
    read.
    """
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
