"""Entities are scored as `conlleval` and seqeval score them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.metrics.seqeval import Seqeval, entities
from tests.covering import examples

TAGS = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "I-X-Y", "B-"]), min_size=1, max_size=12)


def starts(before: str, before_kind: str, tag: str, kind: str) -> bool:
    """`start_of_chunk` of conlleval, for B, I and O."""
    return tag == "B" or (before == "O" and tag == "I") or (tag != "O" and before_kind != kind)


def ends(before: str, before_kind: str, tag: str, kind: str) -> bool:
    """`end_of_chunk` of conlleval, for B, I and O."""
    return before in ("B", "I") and (tag in ("B", "O") or before_kind != kind)


def official_entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """conlleval's walk: two questions are asked between each pair of neighbouring tags."""
    found, begin = set(), 0
    before, before_kind = "O", ""
    for place, whole in enumerate([*tags, "O"]):
        tag, kind = whole[0], whole[2:]
        if ends(before, before_kind, tag, kind):
            found.add((before_kind, begin, place))
        if starts(before, before_kind, tag, kind):
            begin = place
        before, before_kind = tag, kind
    return found


@examples(100, 500)
@given(TAGS)
def test_entities_are_those_of_conlleval(tags):
    assert entities(tags) == official_entities(tags)


def test_a_case_by_hand():
    # one of two true entities is found; the other has its class right and its end wrong; one tag of six is wrong
    right = [["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"]]
    said = [["B-PER", "I-PER", "O", "B-LOC", "O", "O"]]
    assert Seqeval().compute(said, right) == {
        "f1": 0.5,
        "precision": 0.5,
        "recall": 0.5,
        "accuracy": pytest.approx(5 / 6),
    }


def test_an_inside_tag_without_a_beginning_begins_an_entity():
    assert entities(["I-X", "I-X", "I-Y", "O", "I-Y"]) == {("X", 0, 2), ("Y", 2, 3), ("Y", 4, 5)}


@pytest.mark.parametrize("said", [["O"], [["O", "O"]], ["OO"]])
def test_tags_that_are_no_lists_of_one_length_are_refused(said):
    with pytest.raises(ValueError, match=r"tags|lists"):
        Seqeval().compute(said, [["O"]])
