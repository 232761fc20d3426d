"""Denoising's settings: what it refuses, and what it asks for.

Damaged texts: every kind of damage alone, held against what it leaves of a text whose tokens are all different.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import ModelError
from pipelines.data.randomness import uniforms
from pipelines.data.tokenizers.bpe import BPE
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.objectives.denoising import FULL_STOPS, Damage, Denoising, poisson


def test_the_defaults_are_the_papers():
    objective = Denoising()
    assert (objective.mask_ratio, objective.poisson_lambda, objective.permute_sentences) == (0.3, 3.0, True)
    assert (objective.delete_ratio, objective.rotate) == (0.0, 0.0)
    assert objective.head.kind == "seq2seq_lm"
    assert objective.raw_length(128) == 126


def test_a_text_that_nothing_damages_is_refused():
    with pytest.raises(ValidationError) as caught:
        Denoising(mask_ratio=0.0, permute_sentences=False)
    assert flatten(caught.value) == [
        (("mask_ratio",), "is 0 and nothing else is switched on, so the text would not be damaged at all; raise one")
    ]
    Denoising(mask_ratio=0.0, permute_sentences=False, rotate=0.5)


def test_a_decoder_that_looks_ahead_is_refused():
    assert "use mask_predict" in str(Denoising().misfit({"bidirectional_decoder": True}))
    assert Denoising().misfit({"family": "encoder-decoder", "bidirectional_decoder": False}) is None


PAD, BEGIN, END, MASK, STOP = 0, 1, 2, 3, 4
FIRST = 10
"""Ids from here on are words."""


class Vocabulary:
    """What the collator asks of a tokenizer."""

    pad_token_id, cls_token_id, sep_token_id, eos_token_id, mask_token_id = PAD, BEGIN, END, END, MASK
    all_special_ids = (PAD, BEGIN, END, MASK)

    def __len__(self) -> int:
        return 2000

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["." if number == STOP else f"word{number}" for number in ids]


def collator(seed: int = 0, **settings: Any) -> Damage:
    return Denoising(**settings).collate(Vocabulary(), seed, SimpleNamespace(decoder_start_token_id=END))  # type: ignore[return-value]


ALONE: dict[str, Any] = {"mask_ratio": 0.0, "permute_sentences": False}


def text(*sentences: int) -> list[int]:
    """[CLS], sentences of so many words with a full stop each, [SEP]; no word occurs twice."""
    ids, word = [BEGIN], FIRST
    for words in sentences:
        ids += [*range(word, word + words), STOP]
        word += words
    return [*ids, END]


def examples(*rows: list[int]) -> list[dict[str, Any]]:
    return [{"input_ids": row, "draw": draw} for draw, row in enumerate(rows)]


def damaged(damage: Damage, given_examples: list[dict[str, Any]]) -> list[list[int]]:
    batch = damage(given_examples)
    return [row[real.bool()].tolist() for row, real in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def test_the_target_is_the_text_as_it_was():
    given_examples = examples(text(5, 9, 2), text(3))
    batch = collator()(given_examples)
    for row, example in enumerate(given_examples):
        target = batch["labels"][row][batch["labels"][row] != -100].tolist()
        assert target == example["input_ids"]
        assert batch["decoder_input_ids"][row, : len(target)].tolist() == [END, *target[:-1]]
        assert batch["attention_mask"][row].sum() <= len(target)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 120), min_size=1, max_size=5), st.floats(0.02, 0.9), st.floats(0.5, 8), st.integers(0, 9)
)
def test_infilling_leaves_words_in_order_and_hides_its_share(words: list[int], ratio: float, rate: float, seed: int):
    rows = [[BEGIN, *range(FIRST, FIRST + count), END] for count in words]
    damage = collator(seed, mask_ratio=ratio, poisson_lambda=rate, permute_sentences=False)
    for row, left in zip(rows, damaged(damage, examples(*rows)), strict=True):
        kept = [token for token in left if token != MASK]
        assert kept == sorted(kept, key=row.index)
        assert (left[0], left[-1]) == (BEGIN, END)
        assert len(row) - len(kept) == round((len(row) - 2) * ratio)
        assert len(left) <= len(row)
        for before, after in pairwise(kept):  # where words are missing, a mask says so
            if after != before + 1 and END not in (before, after) and BEGIN not in (before, after):
                assert MASK in left[left.index(before) : left.index(after)]


def test_span_lengths_are_poisson_and_empty_ones_put_masks_in():
    rows = [[BEGIN, *range(FIRST, FIRST + 500), END]] * 60
    masks = Counter()
    for left in damaged(collator(mask_ratio=0.3, permute_sentences=False), examples(*rows)):
        masks[sum(token == MASK for token in left)] += 1
    mean = sum(count * number for count, number in masks.items()) / 60
    # 150 hidden tokens in spans of 3 on average, empty ones counted; the cut of the last one adds about half a span
    assert mean == pytest.approx(150 / 3 + 0.5, abs=1.5)
    lengths = poisson(3.0, uniforms(0, 9, np.arange(200), 100))
    for length in range(8):
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert np.mean(lengths == length) == pytest.approx(expected, abs=5 * math.sqrt(expected / 20_000))


def test_poisson_is_scipys():
    from scipy.stats import poisson as reference

    luck = np.linspace(0, 0.999999, 1001)
    for rate in (0.5, 3.0, 50.0):
        assert poisson(rate, luck).tolist() == [
            max(0, int(value)) for value in reference.ppf(np.nextafter(luck, 1), rate)
        ]


def test_sentences_change_places_and_stay_whole():
    rows = [text(4, 7, 2, 5, 1)] * 200
    orders = Counter()
    for left in damaged(collator(mask_ratio=0.0), examples(*rows)):
        assert (left[0], left[-1]) == (BEGIN, END)
        sentences = " ".join(map(str, left[1:-1])).split(f" {STOP}")
        assert sentences[-1] == ""
        starts = [int(sentence.split()[0]) for sentence in sentences[:-1]]
        for sentence in sentences[:-1]:
            numbers = [int(token) for token in sentence.split()]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert sorted(starts) == [10, 14, 21, 23, 28]
        orders[tuple(starts)] += 1
    assert len(orders) > 90  # of 120, in 200 draws: 97 expected
    firsts = Counter(order[0] for order in orders.elements())
    assert all(abs(number - 40) < 30 for number in firsts.values())


def test_a_row_of_full_stops_ends_one_sentence_and_a_document_ends_one_too():
    row = [BEGIN, 10, STOP, STOP, STOP, 11, 12, END, 13, STOP, 14, END]
    found = {tuple(left) for left in damaged(collator(mask_ratio=0.0), examples(*[row] * 300))}
    pieces = [(10, STOP, STOP, STOP), (11, 12, END), (13, STOP), (14,)]
    for left in found:
        rest = list(left[1:-1])
        for piece in sorted(pieces, key=lambda piece: rest.index(piece[0])):
            assert tuple(rest[: len(piece)]) == piece
            rest = rest[len(piece) :]
    assert len(found) == 24


def test_deletion_takes_its_share_and_leaves_no_trace():
    rows = [text(199)] * 50
    left = damaged(collator(**ALONE, delete_ratio=0.2), examples(*rows))
    assert all(MASK not in row for row in left)
    lost = sum(len(rows[0]) - len(row) for row in left)
    assert lost == pytest.approx(0.2 * 200 * 50, abs=5 * math.sqrt(0.16 * 200 * 50))
    assert all(row == sorted(row, key=rows[0].index) for row in left)
    for row in damaged(collator(**ALONE, delete_ratio=0.9), examples([BEGIN, 10, END])):
        assert row == [BEGIN, 10, END]  # one word stays


def test_rotation_begins_elsewhere():
    rows = [[BEGIN, 10, 11, 12, 13, END]] * 400
    left = Counter(map(tuple, damaged(collator(**ALONE, rotate=1.0), examples(*rows))))
    assert set(left) == {
        (BEGIN, 10, 11, 12, 13, END),
        (BEGIN, 11, 12, 13, 10, END),
        (BEGIN, 12, 13, 10, 11, END),
        (BEGIN, 13, 10, 11, 12, END),
    }
    assert all(abs(number - 100) < 45 for number in left.values())
    half = damaged(collator(**ALONE, rotate=0.5), examples(*rows))
    assert sum(row != rows[0] for row in half) == pytest.approx(150, abs=50)


def test_texts_without_special_tokens_are_damaged_too():
    rows = [list(range(FIRST, FIRST + 40)), [FIRST]]
    for row, left in zip(rows, damaged(collator(permute_sentences=False), examples(*rows)), strict=True):
        assert len(row) - sum(token != MASK for token in left) == round(len(row) * 0.3)


def test_tokenizers_that_do_not_serve_are_refused():
    config = SimpleNamespace(decoder_start_token_id=END)
    without_mask, without_stops = Vocabulary(), Vocabulary()
    without_mask.mask_token_id = None  # type: ignore[assignment]
    with pytest.raises(ModelError, match="no mask token, which the objective denoising needs"):
        Denoising().collate(without_mask, 0, config)
    Denoising(mask_ratio=0.0).collate(without_mask, 0, config)
    without_stops.convert_ids_to_tokens = lambda ids: ["a"] * len(ids)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="no token that is a full stop"):
        Denoising().collate(without_stops, 0, config)
    Denoising(permute_sentences=False).collate(without_stops, 0, config)


@pytest.mark.parametrize("algorithm", [WordPiece, BPE])
def test_full_stops_are_found_in_trained_vocabularies(algorithm: Any):
    tokenizer = algorithm().train(["It was. Was it? Oh! The cat sat . on"] * 5, 330)
    damage = Denoising().collate(tokenizer, 0, SimpleNamespace(decoder_start_token_id=2))
    found = {
        tokenizer.convert_ids_to_tokens(int(number)).lstrip("#Ġ▁")
        for number in np.flatnonzero(damage.stops & ~damage.special)
    }  # type: ignore[attr-defined]
    assert {".", "?", "!"} <= found <= set(FULL_STOPS)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mask_ratio": 0.0, "delete_ratio": 0.2}, {"rotate": 1.0, "delete_ratio": 0.1}, {"mask_ratio": 0.6}],
)
def test_hidden_tokens_are_those_that_the_damaged_text_does_not_show(settings: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    rows = [
        {"input_ids": np.asarray([BEGIN, *random.permutation(np.arange(FIRST, 500))[: 30 + draw], END]), "draw": draw}
        for draw in range(12)
    ]
    made = collator(**settings)
    batch, hidden = made(rows), made.hidden(rows)
    seen = [set(row.tolist()) for row in batch["input_ids"]]
    expected = [
        [label >= 0 and label not in seen[at] for label in row.tolist()] for at, row in enumerate(batch["labels"])
    ]
    assert hidden.tolist() == expected
    assert hidden.any(1).all()
