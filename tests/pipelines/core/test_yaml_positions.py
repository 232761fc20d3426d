"""YAML is read by the 1.2 core schema, every value knows its line, and hostile files end early."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import line_of, read_yaml, read_yaml_text, scalar, write_yaml


def test_numbers_with_exponents_are_numbers_and_no_and_on_are_texts() -> None:
    data, _ = read_yaml_text("a: 1e-3\nb: no\nc: on\nd: true\ne: 012\nf: ~\ng: 3.0\n")
    assert data == {"a": 1e-3, "b": "no", "c": "on", "d": True, "e": 12, "f": None, "g": 3.0}
    assert [type(value) for value in data.values()] == [float, str, str, bool, int, type(None), float]


def test_every_place_knows_its_line() -> None:
    _, lines = read_yaml_text(
        "name: x\nstages:\n  - stage: pretrain\n    arguments:\n      max_steps: 3\n  - {stage: publish}\n"
    )
    assert lines["name",] == 1
    assert lines["stages", 0, "arguments", "max_steps"] == 5
    assert lines["stages", 1, "stage"] == 6
    assert line_of(("stages", 0, "arguments", "absent"), lines) == 4
    assert line_of(("absent",), lines) is None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("a: [1, 2", 1, "not valid YAML"), ("a: 1\na: 2\n", 2, "duplicate key"), ("a: 1\n b: 2\n", 2, "not valid YAML")],
)
def test_broken_yaml_is_one_sentence_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_yaml_text(text, "r.yaml")
    (mistake,) = caught.value.mistakes
    assert words in mistake.message
    assert abs((mistake.line or 0) - line) <= 1


def test_a_file_that_unfolds_without_end_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(RecipeError, match="unfolds to more than"):
        read_yaml_text("\n".join(lines))


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    for name, words in [
        ("absent.yaml", "no such file"),
        (".", "is a folder"),
        ("latin.yaml", "UTF-8"),
        ("large.yaml", "larger than"),
    ]:
        with pytest.raises(RecipeError, match=words):
            read_yaml(tmp_path / name)


def test_values_of_the_command_line_read_as_in_a_file() -> None:
    assert scalar("1e-3") == 1e-3
    assert scalar("{name: lora, r: 8}") == {"name": "lora", "r": 8}
    assert scalar("[1, 2]") == (1, 2)
    assert scalar("no") == "no"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), plain, max_size=4))
def test_what_is_written_is_read_back_equal(data: dict[str, object]) -> None:
    assert read_yaml_text(write_yaml(data))[0] == data
