from hypothesis import given
from hypothesis import strategies as st

from service.web.job import LONGEST_LINE, SHOWN, end_of, last_part, readable, since


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
