import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from pipelines.evaluation.contamination import batched, words_of

TEXTS = some.lists(some.text(alphabet="abAB1 .,'é\n-\0世", max_size=40), max_size=8)


def plain(text):
    """The words as a regular expression finds them: slower, and plainly right."""
    return re.findall(r"[0-9a-z\u0080-\U0010ffff]+", text.replace("\0", " ").lower())


@settings(deadline=None)
@given(TEXTS)
def test_words_have_the_same_hash_exactly_when_they_are_the_same(texts):
    words = words_of(texts)
    expected = [word for text in texts for word in plain(text)]
    assert len(words.hashes) == len(expected)
    assert np.diff(words.starts).tolist() == [len(plain(text)) for text in texts]
    assert len(set(words.hashes.tolist())) == len(set(expected))
    by_word = dict(zip(expected, words.hashes.tolist(), strict=True))
    assert [by_word[word] for word in expected] == words.hashes.tolist()


@settings(deadline=None)
@given(TEXTS, some.integers(1, 4))
def test_runs_stay_within_a_text_and_match_exactly_when_their_words_do(texts, length):
    hashes, first = words_of(texts).runs(length)
    expected = [
        tuple(found[at : at + length])
        for text in texts
        for found in [plain(text)]
        for at in range(len(found) - length + 1)
    ]
    assert len(hashes) == len(expected)
    assert len(set(hashes.tolist())) == len(set(expected))
    assert (np.diff(first) >= 1).all()


@settings(deadline=None)
@given(TEXTS)
def test_whole_texts_match_exactly_when_their_words_do(texts):
    whole = words_of(texts).whole()
    words = [tuple(plain(text)) for text in texts]
    for one in range(len(texts)):
        for other in range(len(texts)):
            assert (whole[one] == whole[other]) == (words[one] == words[other])


def test_a_hash_does_not_depend_on_what_stands_around_it():
    one, two = words_of(["the cat sat"]), words_of(["x" * 5000, "… on THE Cat, sat!"])
    assert one.hashes.tolist() == two.hashes[-3:].tolist()
    assert one.runs(3)[0][0] == two.runs(3)[0][-1]


def test_texts_are_read_in_portions_that_lose_nothing():
    texts = ["a" * 10] * 25
    portions = list(batched(iter(texts), 45))
    assert [len(each) for each in portions] == [5] * 5
    assert list(batched([], 10)) == []
