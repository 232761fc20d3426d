"""What a recipe may say about masked language modelling.

The masks: how many, where, and on what they depend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.data.tokenizers.bpe import BPE
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.objectives.masked_lm import MaskedLM


def test_the_defaults_are_those_of_the_paper():
    objective = MaskedLM()
    assert (objective.probability, objective.replace_with_mask, objective.replace_with_random) == (0.15, 0.8, 0.1)
    assert objective.whole_word is False
    assert objective.head == Head("masked_lm")


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"probability": 0.0}, "probability", "is 0.0, must be greater than 0"),
        ({"probability": 1.0}, "probability", "is 1.0, must be less than 1"),
        ({"replace_with_mask": 1.1}, "replace_with_mask", "is 1.1, must be at most 1"),
        ({"replace_with_mask": 0.95}, "replace_with_random", "and replace_with_mask add up to 1.05, must be at most 1"),
        ({"probabilty": 0.2}, "probabilty", "unknown key 'probabilty'. Did you mean 'probability'?"),
    ],
)
def test_shares_that_cannot_be_are_mistakes(changes: dict[str, Any], key: str, expected: str):
    with pytest.raises(ValidationError) as caught:
        MaskedLM.model_validate({"name": "masked_lm"} | changes)
    ((place, message),) = flatten(caught.value)
    assert ".".join(map(str, place)) == key
    assert message.startswith(expected)


def test_all_shares_may_be_used_up():
    assert MaskedLM(replace_with_mask=0.9, replace_with_random=0.1).replace_with_mask == 0.9


TEXTS = ["unbelievable stories told slowly and wisely by forgotten travellers on endless winter evenings"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece(min_frequency=4).train(TEXTS, 60)  # words in single letters: many pieces a word


def random_examples(tokenizer: Any, count: int, length: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of random ordinary tokens between [CLS] and [SEP]."""
    ordinary = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    rows = np.random.default_rng(seed).choice(ordinary, (count, length))
    rows[:, 0], rows[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    return [{"input_ids": row.astype(np.int32), "draw": draw} for draw, row in enumerate(rows)]


def stacked(examples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([example["input_ids"] for example in examples])).long()


def within(count: int, trials: int, probability: float) -> bool:
    """Whether a count lies within five standard deviations of a binomial's mean: one in two million falls outside."""
    return abs(count - trials * probability) < 5 * math.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize(
    ("probability", "to_mask", "to_random"), [(0.15, 0.8, 0.1), (0.4, 0.5, 0.3), (0.2, 1.0, 0.0), (0.2, 0.0, 1.0)]
)
def test_rates_are_those_of_the_recipe(
    tokenizer: Any, whole_word: bool, probability: float, to_mask: float, to_random: float
):
    objective = MaskedLM(
        probability=probability, replace_with_mask=to_mask, replace_with_random=to_random, whole_word=whole_word
    )
    examples = random_examples(tokenizer, 1500, 66)
    original = stacked(examples)
    batch = objective.collate(tokenizer, seed=3)(examples)
    chosen = batch["labels"] != IGNORED
    asked = int(chosen.sum())
    if not whole_word:  # words are chosen together, so that pieces are no independent trials
        assert within(asked, 1500 * 64, probability)
    masked = batch["input_ids"] == tokenizer.mask_token_id
    assert not (masked & ~chosen).any()
    assert within(int(masked.sum()), asked, to_mask) if 0 < to_mask < 1 else int(masked.sum()) == asked * to_mask
    ordinary = len(tokenizer) - 5
    kept = chosen & (batch["input_ids"] == original)  # a random token may be the one that was there
    expected = 1 - to_mask - to_random + to_random / ordinary
    assert within(int(kept.sum()), asked, expected) if expected > 0 else not kept.any()


def test_random_tokens_are_ordinary_and_even(tokenizer: Any):
    objective = MaskedLM(probability=0.5, replace_with_mask=0.0, replace_with_random=1.0)
    batch = objective.collate(tokenizer, seed=3)(random_examples(tokenizer, 2000, 66))
    tokens = batch["input_ids"][batch["labels"] != IGNORED].numpy()
    counts = np.bincount(tokens, minlength=len(tokenizer))
    assert counts[tokenizer.all_special_ids].sum() == 0
    ordinary = np.delete(counts, tokenizer.all_special_ids)
    from scipy import stats

    assert stats.chisquare(ordinary).pvalue > 1e-6


def test_labels_are_the_original_tokens_and_everything_else_is_untouched(tokenizer: Any):
    examples = random_examples(tokenizer, 200, 40)
    original = stacked(examples)
    batch = MaskedLM().collate(tokenizer, seed=1)(examples)
    chosen = batch["labels"] != IGNORED
    assert torch.equal(batch["labels"][chosen], original[chosen])
    assert torch.equal(batch["input_ids"][~chosen], original[~chosen])
    assert batch["attention_mask"].all()
    assert {value.dtype for value in batch.values()} == {torch.int64}
    assert all(
        np.array_equal(example["input_ids"], row.numpy()) for example, row in zip(examples, original, strict=True)
    )


lengths = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    lengths=lengths,
    seed=st.integers(0, 2**32 - 1),
    start=st.integers(0, 2**40),
    whole_word=st.booleans(),
    probability=st.floats(0.01, 0.9),
    text=st.randoms(use_true_random=False),
)
def test_any_batch_keeps_the_rules(
    tokenizer: Any, lengths: list[int], seed: int, start: int, whole_word: bool, probability: float, text: Any
):
    examples = [
        {"input_ids": [text.randrange(len(tokenizer)) for _ in range(length)], "draw": start + row}
        for row, length in enumerate(lengths)
    ]
    objective = MaskedLM(probability=probability, whole_word=whole_word)
    collate = objective.collate(tokenizer, seed)
    batch = collate(examples)
    special = set(tokenizer.all_special_ids)
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        labels, ids = batch["labels"][row].tolist(), batch["input_ids"][row].tolist()
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (max(lengths) - length)
        assert ids[length:] == [tokenizer.pad_token_id] * (max(lengths) - length)
        assert labels[length:] == [IGNORED] * (max(lengths) - length)
        candidates = [position for position, token in enumerate(example["input_ids"]) if token not in special]
        asked = [position for position in range(length) if labels[position] != IGNORED]
        assert set(asked) <= set(candidates)
        assert bool(asked) == bool(candidates)
        alone = collate([example])
        assert alone["labels"][0].tolist() == labels[:length]
        assert alone["input_ids"][0].tolist() == ids[:length]


def test_another_draw_or_seed_gives_other_masks(tokenizer: Any):
    examples = random_examples(tokenizer, 200, 66)
    asked = MaskedLM().collate(tokenizer, seed=9)(examples)["labels"] != IGNORED
    later = [example | {"draw": example["draw"] + len(examples)} for example in examples]
    for other in (MaskedLM().collate(tokenizer, 9)(later), MaskedLM().collate(tokenizer, 10)(examples)):
        both = int((asked & (other["labels"] != IGNORED)).sum())
        assert within(both, 200 * 64, 0.15 * 0.15)  # chosen twice as often as two independent choices would be


def test_at_least_one_token_of_every_row_is_asked_for(tokenizer: Any):
    examples = random_examples(tokenizer, 500, 3)  # one ordinary token between the special ones
    labels = MaskedLM(probability=0.01).collate(tokenizer, seed=2)(examples)["labels"]
    assert ((labels != IGNORED).sum(1) == 1).all()
    longer = random_examples(tokenizer, 500, 22)
    positions = (MaskedLM(probability=0.001).collate(tokenizer, seed=2)(longer)["labels"] != IGNORED).nonzero()[:, 1]
    assert set(positions.tolist()) == set(range(1, 21))  # not always the same one


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_whole_words_are_asked_for_together(tokenizer: Any, kind: str):
    chosen_tokenizer = tokenizer if kind == "wordpiece" else BPE(min_frequency=4).train(TEXTS, 261)
    encoded = chosen_tokenizer([TEXTS[0]] * 300)
    words = encoded.word_ids(0)  # the tokenizer's own account of which piece belongs to which word
    assert len(set(words)) < len(words)
    examples = [{"input_ids": ids, "draw": draw} for draw, ids in enumerate(encoded["input_ids"])]
    labels = MaskedLM(whole_word=True).collate(chosen_tokenizer, seed=4)(examples)["labels"]
    asked = (labels != IGNORED).numpy()
    whole, parts = 0, 0
    for word in set(words) - {None}:
        pieces = asked[:, [position for position, each in enumerate(words) if each == word]]
        whole += int(pieces.all(1).sum())
        parts += int((pieces.any(1) & ~pieces.all(1)).sum())
    assert parts == 0
    assert within(whole, 300 * len(set(words) - {None}), 0.15)


def test_a_word_cut_by_the_start_of_a_block_is_a_word_of_its_own(tokenizer: Any):
    piece = next(token for token in tokenizer.get_vocab() if token.startswith("##"))
    ids = [tokenizer.cls_token_id, tokenizer.convert_tokens_to_ids(piece), tokenizer.sep_token_id]
    labels = MaskedLM(whole_word=True).collate(tokenizer, seed=4)([{"input_ids": ids, "draw": 0}])["labels"]
    assert (labels != IGNORED).tolist() == [[False, True, False]]


def test_a_row_of_special_tokens_asks_for_nothing(tokenizer: Any):
    ids = [tokenizer.cls_token_id, tokenizer.unk_token_id, tokenizer.sep_token_id]
    batch = MaskedLM().collate(tokenizer, seed=4)([{"input_ids": ids, "draw": 0}])
    assert batch["labels"].tolist() == [[IGNORED] * 3]
    assert batch["input_ids"].tolist() == [ids]


@pytest.mark.parametrize("missing", ["mask", "padding"])
def test_a_tokenizer_that_cannot_mask_is_refused_before_any_batch(missing: str):
    tokenizer = WordPiece(min_frequency=4).train(TEXTS, 60)
    setattr(tokenizer, {"mask": "mask_token", "padding": "pad_token"}[missing], None)
    with pytest.raises(ModelError, match=f"the tokenizer has no {missing} token, which"):
        MaskedLM().collate(tokenizer, seed=0)
