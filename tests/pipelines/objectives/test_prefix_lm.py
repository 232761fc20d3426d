"""Prefix LM: the prefix sees itself in both directions, nothing of it is asked, and the rest is causal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.interfaces import IGNORED, Head
from pipelines.models import opening
from pipelines.objectives.prefix_lm import PrefixLM
from tests import tiny

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
DECODERS = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": SIZES,
    "llama": SIZES,
    "qwen2": SIZES | {"num_key_value_heads": 1},
    "qwen3": SIZES | {"num_key_value_heads": 1, "head_dim": 8},
}


class Foreign:
    """A config that is not ours."""

    model_type = "gpt2"


def rows(lengths: list[int], seed: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    return [
        {"input_ids": generator.integers(5, 60, length).astype(np.int32), "draw": draw}
        for draw, length in enumerate(lengths)
    ]


@settings(deadline=None)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.integers(0, 1000))
def test_mask_and_labels_are_those_of_a_slow_reader(lengths: list[int], seed: int) -> None:
    examples, longest = rows(lengths), max(lengths)
    ours = PrefixLM().collate(tiny.tokenizer(), seed)(examples)
    foreign = PrefixLM().collate(tiny.tokenizer(), seed, Foreign())(examples)
    assert torch.equal(ours["labels"], foreign["labels"])
    assert foreign["attention_mask"].shape == (len(lengths), 1, longest, longest)
    for number, length in enumerate(lengths):
        prefix, ids = int(ours["prefix_length"][number]), examples[number]["input_ids"].tolist()
        assert 1 <= prefix <= length - 1
        asked = [ids[t + 1] if prefix <= t + 1 < length else IGNORED for t in range(longest)]
        assert ours["labels"][number].tolist() == asked
        for query in range(length):
            for key in range(longest):
                seen = key < length and (key <= query or key < prefix)
                assert (foreign["attention_mask"][number, 0, query, key] == 0) == seen


def test_every_prefix_length_comes_equally_often() -> None:
    batch = PrefixLM().collate(tiny.tokenizer(), seed=3)(rows([8] * 7000))
    counts = torch.bincount(batch["prefix_length"], minlength=9)
    assert counts[0] == counts[8] == 0
    assert (counts[1:8] - 1000).abs().max() < 5 * 30  # five standard deviations


@pytest.mark.parametrize("model_type", DECODERS)
def test_prefix_tokens_see_each_other_and_no_other_sees_ahead(model_type: str) -> None:
    model = opening.build(
        {"model_type": model_type, **DECODERS[model_type]}, Head("causal_lm"), tiny.tokenizer(), seed=0
    ).eval()
    assert PrefixLM().misfit(model.config.to_dict()) is None
    tiny.disturb(model)
    example = rows([10])
    batch = PrefixLM().collate(tiny.tokenizer(), 0, model.config)(example)
    batch.pop("labels")
    prefix = int((batch["attention_mask"][0, 0, 0] == 0).sum())
    assert 2 <= prefix <= 8

    def said(place: int | None = None) -> torch.Tensor:
        changed = dict(batch)
        if place is not None:
            changed["input_ids"] = batch["input_ids"].clone()
            changed["input_ids"][0, place] = 3
        with torch.no_grad():
            return model(**changed).logits[0]

    plain = said()
    for place in range(10):
        moved = (said(place) - plain).abs().amax(-1) > 1e-7
        assert moved.tolist() == [position >= place or place < prefix for position in range(10)]


@pytest.mark.parametrize(
    ("architecture", "sentence"),
    [
        ({"model_type": "finery", "family": "decoder"}, None),
        (
            {"model_type": "finery", "family": "decoder", "attention_pattern": "linear"},
            "attention_pattern linear does not",
        ),
        (
            {"model_type": "finery", "family": "decoder", "attention_pattern": "sliding_window"},
            "attention_pattern sliding_window would show a part",
        ),
        ({"model_type": "finery", "family": "encoder"}, "family decoder"),
        ({"model_type": "mamba"}, "which mamba is not known for; known: bert, finery"),
        ({"model_type": "bert"}, "bert sees both ways"),
    ],
)
def test_models_that_cannot_be_told_are_refused(architecture: dict[str, Any], sentence: str | None) -> None:
    found = PrefixLM().misfit(architecture)
    assert (found is None) == (sentence is None)
    assert sentence is None or sentence in found
