"""Unigram vocabularies: the trained tokenizer, and the learning against slow sums."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.tokenizers import unigram as learning
from pipelines.data.tokenizers.base import SPECIAL_TOKENS, split_words
from pipelines.data.tokenizers.unigram import Unigram

TEXTS = [
    f"Document {n}: the quick brown fox jumps over {n * n} lazy dogs, isn't it?\nThe quicker, the lazier."
    for n in range(120)
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Unigram().train(TEXTS, 200)


@settings(deadline=None)
@given(st.text("Documenthquickbrwfxjpsvlazydg 0123,:'?.\n", max_size=60))
def test_text_in_known_letters_comes_back_but_for_its_first_space(tokenizer: Any, text: str):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text.removeprefix(" ")


def test_frequent_words_become_one_piece(tokenizer: Any):
    assert tokenizer.tokenize("the quick brown fox") == ["▁the", "▁quick", "▁brown", "▁fox"]


def test_a_mask_takes_the_space_before_it(tokenizer: Any):
    the = tokenizer.convert_tokens_to_ids("▁the")
    assert tokenizer("the [MASK] the", add_special_tokens=False)["input_ids"] == [the, tokenizer.mask_token_id, the]


def test_the_text_is_likelier_than_with_the_pieces_of_the_library():
    from tokenizers import Tokenizer, models, trainers

    theirs = Tokenizer(models.Unigram())
    split_words(theirs, False)
    theirs.train_from_iterator(
        TEXTS,
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]", show_progress=False
        ),
    )
    ours = Unigram().train(TEXTS, 120).backend_tokenizer
    assert _log_likelihood(ours) > _log_likelihood(theirs)
    assert len(json.loads(ours.to_str())["model"]["vocab"]) <= 120


def _log_likelihood(tokenizer: Any) -> float:
    scores = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    return sum(
        scores[token] for each in tokenizer.encode_batch(TEXTS, add_special_tokens=False) for token in each.tokens
    )


def test_letters_that_are_not_kept_are_unknown():
    tokenizer = Unigram(limit_alphabet=5).train(["aaa bbb ccc ddd ab ab e"] * 3, 40)
    assert tokenizer.unk_token_id in tokenizer("e", add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer("abcd", add_special_tokens=False)["input_ids"]


def test_case_can_be_removed():
    assert Unigram(lowercase=True).train(["LOW low Low lOw"] * 3, 50).tokenize("LOW") == ["▁low"]


def test_pieces_are_no_longer_than_allowed():
    pieces = Unigram(max_piece_length=3).train(TEXTS, 200).get_vocab().keys() - set(SPECIAL_TOKENS)
    assert max(map(len, pieces)) == 3


def test_a_vocabulary_without_room_for_the_letters_says_how_many_it_needs():
    # the space, a and b
    with pytest.raises(
        DataError, match="vocab_size is 7, must be at least 8 for this text: 5 special tokens and 3 letters"
    ):
        Unigram().train(["ab ab"], 7)
    assert len(Unigram().train(["ab ab"], 8)) == 8


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_no_text_is_refused(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        Unigram().train(texts, 300)


WORDS = {"abab": 5, "abc": 3, "bcb": 2, "a": 4, "caab": 1, "x": 1}
LETTERS = "abc"


def spellings(word: str, pieces: dict[str, float]) -> Iterator[tuple[list[str], float]]:
    """Every way to spell a word, with its log probability."""
    if not word:
        yield [], 0.0
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            for rest, score in spellings(word[end:], pieces):
                yield [word[:end], *rest], pieces[word[:end]] + score


def prepared(words: dict[str, int], letters: str, most: int = 100, longest: int = 4):
    known = sorted(words)
    text, counts, heads, tails = learning._strings(known, np.asarray([words[word] for word in known]), letters)
    lattice, candidates, frequencies = learning._candidates(text, counts, heads, tails, letters, most, longest)
    names = [learning._name(text, start, end) for start, end in candidates]
    return lattice, counts, candidates, names, frequencies


def test_candidates_are_the_letters_and_the_substrings_that_occur_twice():
    _, _, _, names, frequencies = prepared(WORDS, LETTERS)
    expected: dict[str, int] = {}
    for word, count in WORDS.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + 4, len(word)) + 1):
                if set(word[start:end]) <= set(LETTERS):
                    expected[word[start:end]] = expected.get(word[start:end], 0) + count
    expected = {piece: count for piece, count in expected.items() if count > 1 or len(piece) == 1}
    assert dict(zip(names, frequencies.astype(int).tolist(), strict=True)) == expected


def test_where_room_is_short_those_stay_that_cover_most_letters():
    _, _, _, names, _ = prepared(WORDS, LETTERS, most=5)
    assert sorted(names) == ["a", "ab", "abab", "b", "c"]  # ab: 5 + 5 + 3 + 1 times 2 letters, abab: 5 times 4


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(st.text("abcx", min_size=1, max_size=6), st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_expected_counts_and_best_spellings_equal_those_of_all_spellings_one_by_one(words: dict[str, int], seed: int):
    if not any(set(word) & set(LETTERS) for word in words):
        return
    lattice, counts, _, names, _ = prepared(words, LETTERS)
    scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(len(names))))
    pieces = dict(zip(names, scores.tolist(), strict=True))
    parts = [
        (part, count)
        for word, count in sorted(words.items())
        for part in "".join(c if c in LETTERS else " " for c in word).split()
    ]
    expected = dict.fromkeys(names, 0.0)
    best = []
    for word, count in parts:
        ways = list(spellings(word, pieces))
        total = sum(math.exp(score) for _, score in ways)
        for way, score in ways:
            for piece in way:
                expected[piece] += count * math.exp(score) / total
        best.append(max(score for _, score in ways))
    found = learning._expected(lattice, counts, scores)
    np.testing.assert_allclose(found, [expected[name] for name in names], rtol=1e-9, atol=1e-12)
    reach, through = learning._best(lattice, scores)
    np.testing.assert_allclose(reach[lattice.tails], best, rtol=1e-9)
    strings, used = learning._spelled(lattice, through)
    rebuilt = [[names[piece] for piece in used[strings == string]][::-1] for string in range(len(parts))]
    assert ["".join(way) for way in rebuilt] == [word for word, _ in parts]


def test_a_candidate_is_spelled_by_others_only():
    lattice, _, candidates, names, _ = prepared(WORDS, LETTERS)
    spelled = learning._spellings(lattice, candidates)
    scores = np.log(np.linspace(1, 2, len(names)) / np.linspace(1, 2, len(names)).sum())
    pieces = dict(zip(names, scores.tolist(), strict=True))
    reach, _ = learning._best(spelled, scores)
    for position, name in enumerate(names):
        others = [score for way, score in spellings(name, pieces) if way != [name]]
        assert reach[spelled.tails][position] == pytest.approx(max(others, default=-math.inf))


def test_em_raises_the_likelihood_until_it_settles():
    lattice, counts, _, names, frequencies = prepared(WORDS, LETTERS)
    single = np.asarray([len(name) == 1 for name in names])
    scores, alive = np.log(frequencies / frequencies.sum()), np.ones(len(names), dtype=bool)
    expected = learning._expected(lattice, counts, scores)
    before = (counts * learning._sums(lattice, scores)[lattice.tails]).sum()
    with np.errstate(divide="ignore"):  # the plain M step, without the digamma function
        after = (counts * learning._sums(lattice, np.log(expected / expected.sum()))[lattice.tails]).sum()
    assert after > before
    alive, scores = learning._estimate(lattice, counts, alive, single, scores)
    assert alive[single].all()
    assert np.isfinite(scores[alive]).all()


def test_what_is_never_part_of_a_best_spelling_goes_first():
    lattice, counts, candidates, names, _ = prepared({"abab": 10, "ab": 10, "ca": 3}, LETTERS)
    pieces = {"a": 0.1, "b": 0.1, "c": 0.1, "ab": 0.6, "ba": 0.02, "bab": 0.01, "aba": 0.01, "abab": 0.05, "ca": 0.01}
    scores = np.log([pieces[name] for name in names])
    single = np.asarray([len(name) == 1 for name in names])
    alive = np.ones(len(names), dtype=bool)
    kept = learning._without_the_useless(
        lattice, learning._spellings(lattice, candidates), counts, alive, single, scores, wanted=5
    )
    # abab is spelled ab ab (0.36 > 0.05), and ca as c a or ca (0.01 each); only ab is worth more than nothing
    assert {name for name, stays in zip(names, kept, strict=True) if stays and len(name) > 1} <= {"ab", "ca"}
    assert kept[names.index("ab")]


def test_the_result_has_every_letter_and_at_most_the_size_asked_for():
    words = {"▁the": 50, "▁then": 20, "▁there": 10, "z": 1, "▁he": 5}
    letters = sorted(set("".join(words)))
    for size in (len(letters), len(letters) + 2, 100):
        pieces = learning.learn(words, letters, size, 16, 0.75)
        assert len(pieces) <= size
        assert set(letters) <= {piece for piece, _ in pieces}
        assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)
    assert "▁the" in dict(pieces)
