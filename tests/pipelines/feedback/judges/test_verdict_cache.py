"""What was answered once is kept, whatever crashes."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.feedback.judges.verdict_cache import VerdictCache, key_of


def test_an_answer_is_kept_over_processes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    cache = VerdictCache(path)
    assert cache.get("a") is None
    cache.put("a", {"text": "A ☃ \ud800"})
    assert VerdictCache(path).get("a") == {"text": "A ☃ \ud800"}
    other = VerdictCache(path)
    other.put("b", 1)
    assert cache.get("b") == 1


def test_a_torn_line_is_cut_off_and_costs_one_answer_only(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    cache = VerdictCache(path)
    cache.put("a", 1)
    cache.put("b", 2)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        again = VerdictCache(path)
        known = [key for key in "ab" if again.get(key) is not None]
        assert known == [json.loads(line)["key"] for line in whole[:length].split(b"\n")[: whole[:length].count(b"\n")]]
        again.put("c", 3)
        assert VerdictCache(path).get("c") == 3
        assert [json.loads(line)["key"] for line in path.read_bytes().splitlines()] == [*known, "c"]


def test_a_glued_line_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(
        b'{"key": "a", "answer": 1}\n{"key": "b", "ans{"key": "c", "answer": 3}\n{"key": "d", "answer": 4}\n7\n'
    )
    cache = VerdictCache(path)
    assert [cache.get(key) for key in "abcd"] == [1, None, None, 4]


def _write(path: Path, name: str) -> None:
    cache = VerdictCache(path)
    for number in range(50):
        cache.put(f"{name}{number}", "x" * 300)


def test_several_processes_write_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write, args=(path, name)) for name in "abc"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert len({json.loads(line)["key"] for line in path.read_text().splitlines()}) == 150


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_a_question_has_one_name(question: dict[str, str]) -> None:
    assert key_of(question) == key_of(dict(reversed(question.items())))
    assert key_of(question) != key_of({**question, "more": "x"})
