from hypothesis import given
from hypothesis import strategies as st

from service.web.job import difference

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "  d: 1", ""]), max_size=25).map("\n".join)


def test_equal_texts_have_none():
    assert difference("a\nb\n", "a\nb") == []


@given(TEXTS, TEXTS)
def test_both_texts_can_be_read_off_it_by_their_line_numbers(left, right):
    before, after = left.splitlines(), right.splitlines()
    lines = difference(left, right)
    for line in lines:
        assert line.left is None or before[line.left - 1] == line.text
        assert line.right is None or after[line.right - 1] == line.text
    if lines:
        # a line that is not shown as gone or new is in both, in the same order
        gone = {line.left for line in lines if line.kind == "gone"}
        new = {line.right for line in lines if line.kind == "new"}
        assert [text for at, text in enumerate(before, 1) if at not in gone] == [
            text for at, text in enumerate(after, 1) if at not in new
        ]
    else:
        assert before == after


def test_long_equal_stretches_are_left_out_around_the_change():
    left = "\n".join(f"line {number}" for number in range(40))
    lines = difference(left, left.replace("line 20", "line twenty"))
    assert [line.kind for line in lines] == [
        "gap",
        "same",
        "same",
        "same",
        "gone",
        "new",
        "same",
        "same",
        "same",
        "gap",
    ]
    assert lines[0].text == "17 equal lines"
    assert (lines[4].left, lines[5].right) == (21, 21)
