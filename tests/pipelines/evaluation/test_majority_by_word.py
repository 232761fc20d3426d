"""Each word gets the tag it had most often."""

from __future__ import annotations

import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import NotDefined, majority_by_word
from pipelines.tasks.token_classification.task import WordRows


def rows(*texts: str, tags: list[list[int]] | None = None) -> WordRows:
    return WordRows(list(texts), None, tags, range(len(texts)), [text.split() for text in texts])


TRAIN = rows("a b a", "a c", tags=[[1, 2, 1], [0, 2]])


def test_known_words_get_their_own_tag_and_others_the_most_frequent_of_all():
    # a: 1 twice, 0 once; b: 2; c: 2. Of all tags 1 and 2 are twice: the smaller wins
    guesses = majority_by_word(TRAIN, rows("c a", "z"), 1)
    assert [guess.tolist() for guess in guesses] == [[2, 1], [1]]


def test_it_is_not_defined_where_there_are_no_words_or_no_tags():
    with pytest.raises(NotDefined, match="only words with a tag each"):
        majority_by_word(Rows(["a"], None, [0], [0]), rows("a"), 2)
    with pytest.raises(NotDefined, match="no tags to count"):
        majority_by_word(rows("a"), rows("a"), 1)
