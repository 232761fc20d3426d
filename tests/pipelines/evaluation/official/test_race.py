"""RACE prediction files: a letter an id, or a list of letters where an article has several questions."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import CommandError
from pipelines.evaluation.official.race import score_race


@pytest.fixture
def scored(tmp_path):
    def score(said, rows):
        pq.write_table(
            pa.table({"example_id": [name for name, _ in rows], "answer": [letter for _, letter in rows]}),
            tmp_path / "r.parquet",
        )
        (tmp_path / "p.json").write_text(said if isinstance(said, str) else json.dumps(said))
        return score_race(tmp_path / "p.json", tmp_path / "r.parquet")

    return score


def test_a_letter_an_id(scored):
    assert scored({"b": "c", "a": "A", "d": "B"}, [("a", "A"), ("b", "C"), ("d", "D")]) == {
        "accuracy": 2 / 3,
        "total": 3,
    }


def test_an_article_with_several_questions_takes_a_list(scored):
    rows = [("middle1.txt", "A"), ("high2.txt", "B"), ("middle1.txt", "C"), ("middle1.txt", "D")]
    found = scored({"middle1.txt": ["A", "C", "B"], "high2.txt": "B"}, rows)
    # 2 of the 3 of the middle school, 1 of 1 of the high school: all questions count alike
    assert found == {"accuracy": 3 / 4, "accuracy_middle": 2 / 3, "accuracy_high": 1.0, "total": 4}


@pytest.mark.parametrize(
    ("said", "rows", "sentence"),
    [
        ({"a": "A"}, [("a", "A"), ("b", "B")], "no prediction for 1 of the 2 ids .*: b"),
        ({"a": "A", "c": "B"}, [("a", "A")], "has 1 ids that .* has not: c"),
        ({"a": "E"}, [("a", "A")], "has 'E' for 'a', must be one of the letters A, B, C, D"),
        ({"a": 0}, [("a", "A")], "has '0' for 'a'"),
        ({"a": "A"}, [("a", "A"), ("a", "B")], "has 1 letters for 'a', which has 2 questions; give a list"),
        ({"a": "A"}, [("a", "X")], "r.parquet has 'X' for 'a'"),
        ('{"a": "A", "a": "B"}', [("a", "A")], "1 ids more than once: a"),
        ({}, [("a", "A")], "at least one prediction"),
        ([], [("a", "A")], "must hold one object"),
    ],
)
def test_wrong_files_are_one_sentence(scored, said, rows, sentence):
    with pytest.raises(CommandError, match=sentence):
        scored(said, rows)


def test_lines_of_json_are_references_too(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"example_id": "a", "answer": "B"}\n')
    (tmp_path / "p.json").write_text('{"a": "b"}')
    assert score_race(tmp_path / "p.json", tmp_path / "r.jsonl") == {"accuracy": 1.0, "total": 1}
