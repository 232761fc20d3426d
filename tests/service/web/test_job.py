from hypothesis import given
from hypothesis import strategies as st

from service.web.job import LONGEST_LINE, SHOWN, difference, end_of, last_part, readable, since
from tests.words import words_of


def printed(folder, text, start=0):
    (folder / "console").mkdir(exist_ok=True)
    with open(folder / "console" / f"{start:020d}.log", "ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return folder


def test_colours_go_and_of_a_progress_bar_its_last_state_stays():
    assert readable("\x1b[1;32mdone\x1b[0m\n 10%\r 55%\r100%\r\n\x1b]0;title\x07end") == "done\n100%\nend"


@given(st.text())
def test_no_control_character_reaches_the_page(text):
    shown = readable(text)
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
    assert not set(shown) & set("\x7f\u202e\u2066\x1b")


def test_a_line_without_end_is_cut_and_says_so():
    shown = readable("x" * (LONGEST_LINE + 1_234))
    assert shown.endswith("1,234 more characters")
    assert len(shown) < LONGEST_LINE + 100


def test_of_a_huge_log_the_end_is_read_from_a_whole_line_on(tmp_path):
    printed(tmp_path, "".join(f"line {number}\n" for number in range(200_000)))
    shown = last_part(tmp_path).splitlines()
    assert shown[-1] == "line 199999"
    assert shown[0] in {f"line {number}" for number in range(200_000)}
    assert len("\n".join(shown)) <= SHOWN


def test_what_follows_is_read_by_whole_lines_across_rotations(tmp_path):
    printed(tmp_path, "one\ntw")
    text, at = since(tmp_path, 0)
    assert (text, at) == ("one\n", 4)
    assert since(tmp_path, at) == ("", 4)
    printed(tmp_path, "o\n")
    printed(tmp_path, "three\n", start=8)
    assert since(tmp_path, at) == ("two\nthree\n", 14)
    assert end_of(tmp_path) == 14


def test_a_flood_between_two_looks_is_cut_to_its_end(tmp_path):
    printed(tmp_path, "x" * 99 + "\n")
    _, at = since(tmp_path, 0)
    printed(tmp_path, ("y" * 99 + "\n") * 10_000)
    text, end = since(tmp_path, at)
    assert text.startswith("… 936,000 bytes left out …\n")
    assert text.endswith("y\n")
    assert end == 1_000_100


def test_an_attempt_that_printed_nothing_has_an_empty_log(tmp_path):
    assert last_part(tmp_path) == ""
    assert end_of(tmp_path) == 0


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
    assert [line.kind for line in lines] == words_of("gap same same same gone new same same same gap")
    assert lines[0].text == "17 equal lines"
    assert (lines[4].left, lines[5].right) == (21, 21)
