"""Permutation LM against a slow reading of the definition, transformers' own collator, and XLNet itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.interfaces import IGNORED, Head
from pipelines.models import opening
from pipelines.objectives.permutation_lm import Permutation, PermutationLM, hidden
from tests import tiny


def rows(lengths: list[int], seed: int = 0, special: float = 0.1) -> list[dict[str, Any]]:
    """Random tokens, some of them ends of documents."""
    generator = np.random.default_rng(seed)
    found = []
    for draw, length in enumerate(lengths):
        ids = generator.integers(5, 60, length)
        ids[generator.random(length) < special] = tiny.tokenizer().sep_token_id
        found.append({"input_ids": ids.astype(np.int32), "draw": draw})
    return found


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 14), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.sampled_from([(6, 1), (2, 1), (3, 4)]),
)
def test_who_is_asked_sees_what_is_not_asked_and_what_comes_before(
    lengths: list[int], seed: int, words: tuple[int, int]
) -> None:
    examples = rows(lengths, seed, special=0.0)
    objective = PermutationLM(k=words[0], max_span_length=words[1])
    collate = objective.collate(tiny.tokenizer(), seed)
    batch = collate(examples)
    for number, length in enumerate(lengths):
        mapping = batch["target_mapping"][number]
        asked = [int(row.argmax()) for row in mapping if row.any()]
        ids = examples[number]["input_ids"].tolist()
        assert batch["labels"][number].tolist() == [ids[place] for place in asked] + [IGNORED] * (
            len(mapping) - len(asked)
        )
        assert (mapping.sum(1) == torch.tensor([1.0] * len(asked) + [0.0] * (len(mapping) - len(asked)))).all()
        assert asked == sorted(set(asked))
        assert max(asked) < length
        if words[1] == 1:
            assert len(asked) == max(length // words[0], 1)
        seen = batch["perm_mask"][number] == 0
        for query in range(length):
            for key in range(length):
                if key not in asked:
                    assert seen[query, key]
                elif query not in asked or query == key:
                    assert not seen[query, key]
                else:  # of two that are asked exactly one sees the other
                    assert seen[query, key] != seen[key, query]


def test_masks_are_those_of_transformers_collator() -> None:
    """transformers: DataCollatorForPermutationLanguageModeling.torch_mask_tokens, its last lines, for given orders."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        order, asked = torch.randperm(12, generator=generator), torch.rand(12, generator=generator) < 0.4
        index = order.clone()
        index.masked_fill_(~asked, -1)
        expected = (index.reshape((12, 1)) <= index.reshape((1, 12))) & asked
        ours = hidden(order.double().numpy()[None], asked.numpy()[None])[0]
        assert np.array_equal(ours, expected.float().numpy())


@pytest.fixture(scope="module")
def xlnet() -> Any:
    words = {"model_type": "xlnet", "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
    model = opening.build(words, Head("causal_lm"), tiny.tokenizer(), seed=0).eval()
    tiny.disturb(model)
    return model


def test_no_asked_token_sees_itself_or_a_later_one(xlnet: Any) -> None:
    example = rows([16], special=0.0)
    collate = PermutationLM(k=3).collate(tiny.tokenizer(), seed=4)
    batch = collate(example)
    batch.pop("labels")
    asked = batch["target_mapping"][0].argmax(1).tolist()
    hidden_from = batch["perm_mask"][0]

    def said(place: int | None = None) -> torch.Tensor:
        changed = dict(batch)
        if place is not None:
            changed["input_ids"] = batch["input_ids"].clone()
            changed["input_ids"][0, place] = 3
        with torch.no_grad():
            return xlnet(**changed).logits[0]

    plain = said()
    assert plain.shape == (len(asked), len(tiny.tokenizer()))
    for place in range(16):
        moved = (said(place) - plain).abs().amax(-1) > 1e-7
        assert moved.tolist() == [not hidden_from[query, place] for query in asked]


def test_the_loss_is_the_sum_over_the_asked_tokens(xlnet: Any) -> None:
    batch = PermutationLM().collate(tiny.tokenizer(), seed=1)(rows([24, 9, 30], special=0.3))
    (total,), _ = PermutationLM().loss(xlnet, batch)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    expected = sum(
        -xlnet(**inputs).logits[row, place].log_softmax(-1)[label]
        for row, labels in enumerate(batch["labels"].tolist())
        for place, label in enumerate(labels)
        if label != IGNORED
    )
    torch.testing.assert_close(total, expected)
    assert (batch["labels"] == IGNORED).any()


def test_padding_changes_nothing(xlnet: Any) -> None:
    first, second = rows([24, 9], special=0.3)
    collate = PermutationLM().collate(tiny.tokenizer(), seed=1)
    alone, together = collate([second]), collate([first, second])
    asked = alone["labels"].shape[1]
    assert torch.equal(together["labels"][1, :asked], alone["labels"][0])
    with torch.no_grad():
        short = xlnet(**{name: value for name, value in alone.items() if name != "labels"}).logits[0]
        long = xlnet(**{name: value for name, value in together.items() if name != "labels"}).logits[1, :asked]
    torch.testing.assert_close(long, short)


def test_ends_of_documents_and_padding_are_never_asked() -> None:
    examples = rows([20, 31, 8] * 30, special=0.3)
    for words in ({}, {"max_span_length": 5}):
        batch = PermutationLM(**words).collate(tiny.tokenizer(), seed=1)(examples)
        asked = set(batch["labels"].unique().tolist())
        assert not asked & set(tiny.tokenizer().all_special_ids)
        assert ((batch["labels"] != IGNORED).sum(1) >= 1).all()


def test_spans_have_every_length_and_ask_one_in_k() -> None:
    examples = rows([600] * 40, special=0.0)
    objective = PermutationLM(max_span_length=5)
    collate = objective.collate(tiny.tokenizer(), seed=2)
    assert isinstance(collate, Permutation)
    batch = collate(examples)
    share = (batch["labels"] != IGNORED).sum().item() / (40 * 600)
    assert abs(share - 1 / 6) < 0.01
    marks = np.zeros((40, 602), dtype=int)
    marks[:, 1:-1] = collate.spans(np.arange(40), 600)
    starts, ends = np.argwhere(np.diff(marks) == 1), np.argwhere(np.diff(marks) == -1)
    lengths = ends[:, 1] - starts[:, 1]
    counts = np.bincount(lengths, minlength=6)[1:6]
    assert counts.sum() > 0.95 * len(lengths)  # the rest are spans that touch
    assert (abs(counts / counts.sum() - 0.2) < 0.05).all()


def test_every_token_is_asked_equally_often() -> None:
    asked = np.zeros(60)
    for words in ({}, {"max_span_length": 5}):
        batch = PermutationLM(**words).collate(tiny.tokenizer(), seed=2)(rows([60] * 750, special=0.0))
        asked = batch["target_mapping"].sum((0, 1)).numpy() / 750
        assert abs(asked[5:-15].mean() - 1 / 6) < 0.01
        assert abs(asked[5:-15] - 1 / 6).max() < 0.05


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "finery"])
def test_models_with_one_stream_are_refused(model_type: str) -> None:
    assert f"two streams, which {model_type} has not" in str(PermutationLM().misfit({"model_type": model_type}))
    assert PermutationLM().misfit({"model_type": "xlnet"}) is None
