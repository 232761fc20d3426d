"""Documents kept apart: each says what it would say alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.interfaces import IGNORED
from pipelines.core.model_types import TAKE_MASKS, takes_masks
from pipelines.models import opening
from pipelines.objectives.attention_masks import SeparateDocuments, additive, documents, earlier, restarted
from pipelines.objectives.causal_lm import CausalLM
from pipelines.objectives.masked_lm import MaskedLM
from pipelines.objectives.prefix_lm import PrefixLM
from tests import tiny

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": SIZES | {"is_decoder": True},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48},
    "gpt_neox": SIZES,
    "llama": SIZES,
    "qwen2": SIZES | {"num_key_value_heads": 1},
    "qwen3": SIZES | {"num_key_value_heads": 1, "head_dim": 8},
    "finery": SIZES | {"family": "decoder"},
}
END = tiny.tokenizer().sep_token_id


def packed(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Documents of random tokens, each with its end, but for the last, which the block's end cuts off."""
    generator = np.random.default_rng(seed)
    found = [[*generator.integers(5, 60, length).tolist(), END] for length in lengths]
    return [*found[:-1], found[-1][:-1]]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=3).filter(
        lambda rows: len({len(row) for row in rows}) == 1
    )
)
def test_documents_end_with_their_end(rows: list[list[int]]) -> None:
    ids = np.array(rows)
    numbers, places = documents(ids, end=0), restarted(documents(ids, end=0))
    for row, tokens in enumerate(rows):
        document, place = 0, 0
        for position, token in enumerate(tokens):
            assert (numbers[row, position], places[row, position]) == (document, place)
            document, place = (document + 1, 0) if token == 0 else (document, place + 1)


def test_masks_add_nothing_or_nearly_minus_infinity() -> None:
    mask = additive(earlier(4, np.array([1, 3])))
    assert mask.shape == (2, 1, 4, 4)
    assert (mask[0, 0] == 0).tolist() == np.tri(4, dtype=bool).tolist()
    assert (mask[1, 0] == 0).tolist() == [[True, True, True, False]] * 3 + [[True] * 4]
    assert np.isfinite(mask).all()
    assert mask.min() < -1e38


@pytest.mark.parametrize("model_type", TAKE_MASKS)
def test_a_packed_document_says_what_it_says_alone(model_type: str) -> None:
    words = {"model_type": model_type, **SHAPES[model_type]}
    assert takes_masks(words) is None
    model = opening.build(words, CausalLM().head, tiny.tokenizer(), seed=0).eval()
    tiny.disturb(model)
    parts = packed([7, 3, 9])
    block = [{"input_ids": [token for part in parts for token in part], "draw": 0}]
    batch = SeparateDocuments(CausalLM().collate(tiny.tokenizer(), 0), END, causal=True)(block)
    labels = batch.pop("labels")
    with torch.no_grad():
        together = model(**batch).logits[0]
        mixed = model(input_ids=batch["input_ids"]).logits[0]
    start = 0
    for number, part in enumerate(parts):
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([part])).logits[0]
        torch.testing.assert_close(together[start : start + len(part)], alone, rtol=1e-4, atol=1e-5)
        assert number == 0 or (mixed[start : start + len(part)] - alone).abs().max() > 1e-3  # the probe itself works
        assert labels[0, start : start + len(part)].tolist() == [*part[1:], IGNORED]
        start += len(part)


@pytest.mark.parametrize("model_type", ["bert", "finery"])
def test_encoders_keep_documents_apart_too(model_type: str) -> None:
    model = opening.build({"model_type": model_type, **SIZES}, MaskedLM().head, tiny.tokenizer(), seed=0).eval()
    tiny.disturb(model)
    parts = packed([7, 3, 9])
    block = [{"input_ids": [token for part in parts for token in part], "draw": 0}]
    plain = MaskedLM(probability=0.3).collate(tiny.tokenizer(), 0)(block)
    batch = SeparateDocuments(MaskedLM(probability=0.3).collate(tiny.tokenizer(), 0), END, causal=False)(block)
    assert torch.equal(batch.pop("labels"), plain["labels"])
    assert torch.equal(batch["input_ids"], plain["input_ids"])
    with torch.no_grad():
        together, start = model(**batch).logits[0], 0
        for part in parts:
            alone = model(input_ids=batch["input_ids"][:, start : start + len(part)]).logits[0]
            torch.testing.assert_close(together[start : start + len(part)], alone, rtol=1e-4, atol=1e-5)
            start += len(part)


@pytest.mark.parametrize("ours", [True, False])
def test_a_prefix_ends_with_its_document(ours: bool) -> None:
    class Config:
        model_type = "finery" if ours else "gpt2"

    parts = packed([5, 6, 4])
    block = [{"input_ids": [token for part in parts for token in part], "draw": draw} for draw in range(20)]
    prefix = PrefixLM().collate(tiny.tokenizer(), 0)(block)["prefix_length"]
    batch = SeparateDocuments(PrefixLM().collate(tiny.tokenizer(), 0, Config()), END, causal=True)(block)
    assert "prefix_length" not in batch
    of = [number for number, part in enumerate(parts) for _ in part]
    for row in range(20):
        for query in range(len(of)):
            for key in range(len(of)):
                seen = of[query] == of[key] and (key <= query or key < prefix[row])
                assert (batch["attention_mask"][row, 0, query, key] == 0) == seen


def test_padding_is_not_seen() -> None:
    examples = [{"input_ids": list(range(5, 5 + length)), "draw": 0} for length in (6, 4)]
    batch = SeparateDocuments(MaskedLM().collate(tiny.tokenizer(), 0), END, causal=False)(examples)
    seen = batch["attention_mask"][1, 0] == 0
    assert seen[:4].tolist() == [[True] * 4 + [False] * 2] * 4
    assert seen[5].tolist() == [True] * 4 + [False, True]


@pytest.mark.parametrize("model_type", ["xlnet", "mamba", "modernbert"])
def test_models_that_take_no_such_mask_are_refused(model_type: str) -> None:
    assert f"which {model_type} is not known for" in str(takes_masks({"model_type": model_type}))


def test_attention_that_takes_no_such_mask_is_refused() -> None:
    assert "attention_pattern linear does not" in str(takes_masks({"attention_pattern": "linear"}))


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_window_stays_within_its_document(family: str, position: str) -> None:
    words = {
        "model_type": "finery",
        **SIZES,
        "family": family,
        "position": position,
        "attention_pattern": "sliding_window",
        "sliding_window": 3,
        "global_attn_every_n_layers": 2,
    }
    assert takes_masks(words) is None
    objective = CausalLM() if family == "decoder" else MaskedLM()
    model = opening.build(words, objective.head, tiny.tokenizer(), seed=0).eval()
    tiny.disturb(model)
    parts = packed([7, 3, 9])
    block = np.array([[token for part in parts for token in part]])
    numbers = documents(block, END)
    allowed = numbers[:, :, None] == numbers[:, None, :]
    allowed = allowed & earlier(block.shape[1]) if family == "decoder" else allowed
    with torch.no_grad():
        together = model(
            input_ids=torch.from_numpy(block),
            attention_mask=torch.from_numpy(additive(allowed)),
            position_ids=torch.from_numpy(restarted(numbers)),
        ).logits[0]
        alone = torch.cat([model(input_ids=torch.tensor([part])).logits[0] for part in parts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
