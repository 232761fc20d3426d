"""SQuAD prediction files score as with the official scripts, and wrong files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pipelines.core.errors import CommandError
from pipelines.evaluation.official.squad import read_references, score_squad, score_squad_v2
from tests.covering import examples
from tests.pipelines.metrics.official_squad import version_1, version_2
from tests.pipelines.metrics.test_squad import TEXTS

FILES = examples(40, 120, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODDS = st.sampled_from([-3.5, 0.0, 0.1, 0.1, 0.5, 0.999, 1.0, 2.25])


def official(right: dict[str, list[str]]) -> dict[str, Any]:
    """A reference file, one paragraph a question."""
    questions = [
        {"id": name, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in answers]}
        for name, answers in right.items()
    ]
    return {
        "version": "x",
        "data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [question]} for question in questions]}],
    }


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@FILES
@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=10))
def test_squad_equals_the_official_script(file, questions):
    right = {f"q{at}": answers for at, (_, answers) in enumerate(questions)}
    said = {f"q{at}": text for at, (text, _) in enumerate(questions)}
    found = score_squad(file("p.json", said), file("r.json", official(right)))
    expected = version_1(right, said)
    assert found == {**{key: pytest.approx(value, abs=1e-10) for key, value in expected.items()}, "total": len(right)}


@FILES
@given(
    st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3), ODDS), min_size=1, max_size=10),
    st.booleans(),
    st.sampled_from([1.0, 0.1, -4.0]),
    st.randoms(),
)
def test_squad_v2_equals_the_official_script_key_by_key(file, questions, with_odds, limit, random):
    right = {f"q{at}": answers for at, (_, answers, _) in enumerate(questions)}
    said = {f"q{at}": text for at, (text, _, _) in enumerate(questions)}
    names = list(right)
    random.shuffle(names)  # of equal odds, the order of their file decides
    odds = {name: questions[int(name[1:])][2] for name in names} if with_odds else None
    found = score_squad_v2(
        file("p.json", said), file("r.json", official(right)), file("n.json", odds) if odds else None, limit
    )
    expected = version_2(right, said, odds, limit)
    assert found.pop("exact_match") == found["exact"]
    assert set(found) == set(expected)
    assert found == pytest.approx(expected, abs=1e-10)


def test_the_official_sum_is_taken_in_the_official_order(file):
    """Means are sums in the order of the questions: equal to the last bit, not only nearly."""
    right = {f"q{at}": ["a b c d e f g"[: 2 * (at % 7) + 1], "x"] for at in range(60)}
    said = dict.fromkeys(right, "a b c d")
    assert score_squad(file("p.json", said), file("r.json", official(right)))["f1"] == version_1(right, said)["f1"]


def test_missing_predictions_are_refused_with_their_number_and_the_first_ids(file):
    right = {f"q{at}": ["a"] for at in range(9)}
    references = file("r.json", official(right))
    predictions = file("p.json", {"q0": "a", "q5": "b"})
    for score in (score_squad, score_squad_v2):
        with pytest.raises(
            CommandError, match=r"no prediction for 7 of the 9 questions of .*: q1, q2, q3, … \(7 in all\)"
        ):
            score(predictions, references)


def test_missing_predictions_may_count_as_wrong_as_the_script_of_version_1_has_it(file):
    right, said, notes = {f"q{at}": ["a"] for at in range(4)}, {"q0": "a", "other": "z"}, []
    found = score_squad(file("p.json", said), file("r.json", official(right)), "zero", notes)
    assert found == {**version_1(right, said), "total": 4, "missing": 3}
    assert [note.split(" ")[0] for note in notes] == ["3", "1"]


@pytest.mark.parametrize(
    ("predictions", "sentence"),
    [
        ("", "is empty"),
        ("{", "is not valid JSON"),
        ("{}", "holds no predictions"),
        ("[]", "holds a list"),
        ('{"q0": 3}', "has a number for the question q0, must be a text"),
        ('{"q0": null}', "has a null for the question q0"),
        ('{"q0": NaN}', "holds NaN, must hold finite numbers"),
        ('{"q0": "a", "q0": "b"}', "1 ids more than once: q0"),
    ],
)
def test_prediction_files_that_are_none_are_one_sentence(file, predictions, sentence):
    references = file("r.json", official({"q0": ["a"]}))
    with pytest.raises(CommandError, match=sentence) as refused:
        score_squad(file("p.json", predictions), references)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("references", "sentence"),
    [
        ({"q0": "a"}, "not in the format of SQuAD.*were the files exchanged"),
        ({"data": []}, "holds no questions"),
        (official({"q0": []}), "1 questions without an answer"),
        (
            {"data": [*official({"q0": ["a"]})["data"], *official({"q0": ["b"]})["data"]]},
            "same question more than once: q0",
        ),
    ],
)
def test_reference_files_that_are_none_are_one_sentence(file, references, sentence):
    with pytest.raises(CommandError, match=sentence):
        score_squad(file("p.json", {"q0": "a"}), file("r.json", references))


@pytest.mark.parametrize(
    ("odds", "sentence"),
    [
        ('{"q0": "0.5"}', "must be a finite number"),
        ('{"q0": 1e999}', "must be a finite number"),
        ('{"q0": true}', "must be a finite number"),
        ('{"q1": 0.5}', "no number for 1 of the 1 questions: q0"),
        ("{}", "must hold one object"),
    ],
)
def test_odds_that_are_none_are_one_sentence(file, odds, sentence):
    with pytest.raises(CommandError, match=sentence):
        score_squad_v2(file("p.json", {"q0": "a"}), file("r.json", official({"q0": ["a"]})), file("n.json", odds))


def test_references_may_be_parquet_or_lines(tmp_path, file):
    answers = [{"text": ["a", "b"], "answer_start": [0, 2]}, {"text": [], "answer_start": []}]
    pq.write_table(pa.table({"id": ["q0", "q1"], "answers": answers}), tmp_path / "r.parquet")
    lines = file(
        "r.jsonl", "".join(json.dumps({"id": f"q{at}", "answers": answer}) + "\n" for at, answer in enumerate(answers))
    )
    assert read_references(tmp_path / "r.parquet") == read_references(lines) == {"q0": ["a", "b"], "q1": []}
