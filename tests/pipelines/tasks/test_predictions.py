"""`predictions.parquet`, and what is doubted about predictions."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.interfaces import Head, Rows
from pipelines.evaluation.report import no_better_than_majority
from pipelines.tasks.extractive_qa.evaluation import Span, SpanAnswer, SpanPredictions
from pipelines.tasks.multiple_choice.evaluation import OptionPredictions
from pipelines.tasks.predictions import (
    ClassPredictions,
    SplitPredictions,
    TextPredictions,
    constant_prediction,
    constant_text,
    read_predictions,
    write_predictions,
)
from pipelines.tasks.token_classification.evaluation import TagPredictions

PAIRS = ClassPredictions(
    "glue/mrpc",
    "validation",
    "",
    Rows(["a", "b"], ["c", "d"], [1, 0], [0, 7]),
    np.array([[0.5, 0.25], [-1.0, 2.0]], dtype=np.float32),
)
HIDDEN = ClassPredictions(
    "glue/ax", "test", "", Rows(["x"], ["y"], None, [0]), np.array([[0.0, 1.0, -1.0]], dtype=np.float32)
)
NUMBERS = ClassPredictions(
    "glue/stsb",
    "validation",
    "",
    Rows(["e", "f"], ["g", "h"], [2.5, 5.0], [0, 1]),
    np.array([[2.25], [4.75]], dtype=np.float32),
)

TEXTS = TextPredictions(
    "multi30k/en-de",
    "test",
    "",
    Rows(["a dog", "a cat"], None, ["ein Hund", "eine Katze"], [0, 1]),
    np.asarray(["ein Hund", "ein Kater"], dtype=object),
)


def test_written_texts_stand_beside_source_and_reference(tmp_path):
    write_predictions(tmp_path / "p.parquet", [TEXTS])
    assert pq.read_table(tmp_path / "p.parquet").to_pylist() == [
        {
            "benchmark": "multi30k/en-de",
            "split": "test",
            "index": 0,
            "source": "a dog",
            "reference": "ein Hund",
            "hypothesis": "ein Hund",
        },
        {
            "benchmark": "multi30k/en-de",
            "split": "test",
            "index": 1,
            "source": "a cat",
            "reference": "eine Katze",
            "hypothesis": "ein Kater",
        },
    ]


def test_texts_and_classes_share_a_file(tmp_path):
    write_predictions(tmp_path / "p.parquet", [TEXTS, PAIRS])
    read = read_predictions(tmp_path / "p.parquet")
    assert read["multi30k/en-de", "test"]["hypothesis"] == ["ein Hund", "ein Kater"]
    assert read["glue/mrpc", "validation"]["label"].tolist() == [1, 0]
    np.testing.assert_array_equal(read["glue/mrpc", "validation"]["logits"], PAIRS.logits)


def test_references_that_are_not_public_are_null(tmp_path):
    hidden = TextPredictions("t", "test", "", Rows(["a"], None, None, [0]), np.asarray(["b"], dtype=object))
    write_predictions(tmp_path / "p.parquet", [hidden])
    assert read_predictions(tmp_path / "p.parquet")["t", "test"]["reference"] == [None]
    assert hidden.labels is None


def test_columns_and_types(tmp_path):
    write_predictions(tmp_path / "p.parquet", [PAIRS, HIDDEN])
    table = pq.read_table(tmp_path / "p.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "benchmark": "string",
        "split": "string",
        "index": "int64",
        "text": "string",
        "text_pair": "string",
        "label": "int64",
        "prediction": "int64",
        "logits": "list<element: float>",
    }
    assert table.to_pylist() == [
        {
            "benchmark": "glue/mrpc",
            "split": "validation",
            "index": 0,
            "text": "a",
            "text_pair": "c",
            "label": 1,
            "prediction": 0,
            "logits": [0.5, 0.25],
        },
        {
            "benchmark": "glue/mrpc",
            "split": "validation",
            "index": 7,
            "text": "b",
            "text_pair": "d",
            "label": 0,
            "prediction": 1,
            "logits": [-1.0, 2.0],
        },
        {
            "benchmark": "glue/ax",
            "split": "test",
            "index": 0,
            "text": "x",
            "text_pair": "y",
            "label": None,
            "prediction": 1,
            "logits": [0.0, 1.0, -1.0],
        },
    ]


def test_regression_keeps_its_numbers(tmp_path):
    write_predictions(tmp_path / "p.parquet", [PAIRS, NUMBERS])
    read = read_predictions(tmp_path / "p.parquet")
    assert read["glue/stsb", "validation"]["label"].tolist() == [2.5, 5.0]
    assert read["glue/stsb", "validation"]["prediction"].tolist() == [2.25, 4.75]
    assert read["glue/mrpc", "validation"]["label"].tolist() == [1, 0]


def test_single_texts_have_no_pair_and_everything_is_read_back(tmp_path):
    single = ClassPredictions(
        "s", "validation", "", Rows(["a"], None, [1], [3]), np.array([[1.0, 2.0]], dtype=np.float32)
    )
    write_predictions(tmp_path / "p.parquet", [single, HIDDEN])
    assert pq.read_table(tmp_path / "p.parquet")["text_pair"].to_pylist() == [None, "y"]
    read = read_predictions(tmp_path / "p.parquet")
    assert list(read) == [("s", "validation"), ("glue/ax", "test")]
    assert read["s", "validation"]["index"].tolist() == [3]
    assert read["glue/ax", "test"]["label"] is None
    np.testing.assert_array_equal(read["glue/ax", "test"]["logits"], HIDDEN.logits)


def test_the_same_class_for_everything_is_doubted():
    logits = np.array([[0.0, 1.0], [2.0, 2.5]])
    doubt = constant_prediction("glue/mrpc", "validation", logits, ("no", "yes"))
    assert doubt is not None
    assert doubt.startswith(
        "glue/mrpc: the model predicts the class 'yes' for every one of the 2 examples of 'validation'"
    )


def test_the_same_number_for_everything_is_doubted():
    assert "predicts 2.5 for" in str(constant_prediction("glue/stsb", "validation", np.full((3, 1), 2.5), ()))


def test_different_answers_and_a_single_example_are_not():
    assert constant_prediction("t", "validation", np.array([[0.0, 1.0], [2.0, 1.0]]), ("no", "yes")) is None
    assert constant_prediction("t", "validation", np.array([[0.0, 1.0]]), ("no", "yes")) is None


ROWS = {"labels": [0, 1] * 3, "texts": ["ein Hund", "eine Katze"] * 3, "answers": [("a",), ("b",)] * 3}
ROWS["tags"] = [[0, 1]] * 6
TASK = SimpleNamespace(head=Head("sequence_classification", ("no", "yes")))
SAME: dict[str, Any] = {
    "labels": lambda rows: ClassPredictions("t", "s", "", rows, np.zeros((len(rows), 2))),
    "options": lambda rows: OptionPredictions("t", "s", "", rows, np.zeros((len(rows), 2))),
    "texts": lambda rows: TextPredictions("t", "s", "", rows, np.asarray(["Hund"] * len(rows), dtype=object)),
    "answers": lambda rows: SpanPredictions(
        "t", "s", "", rows, [SpanAnswer([Span("a", 1, 1, 0, 0, 0, 0)], 0.0)] * len(rows), rows.texts, False, 0.0
    ),
    "tags": lambda rows: TagPredictions("t", "s", "", rows, [np.zeros((2, 2))] * len(rows), ("O", "B-X")),
}


@pytest.mark.parametrize("kind", list(SAME))
def test_one_answer_to_all_is_a_fault_only_of_rows_enough_whose_labels_are_known_to_differ(kind):
    labels = ROWS.get(kind, ROWS["labels"])

    def doubt(labels, count=6):
        return SAME[kind](Rows(["x"] * count, ["y"] * count, labels, list(range(count)))).doubt(TASK)

    assert "has not learnt to" in doubt(labels)
    assert doubt(None) is None
    assert doubt([[0, 0]] * 6 if kind == "tags" else labels[:1] * 6) is None
    assert doubt(labels[:2], 2) is None


def test_the_same_text_for_everything_is_doubted():
    doubt = constant_text("multi30k/en-de", "test", np.asarray(["Ein Mann"] * 3, dtype=object))
    assert str(doubt).startswith(
        "multi30k/en-de: the model writes 'Ein Mann' for every one of the 3 examples of 'test'"
    )
    assert constant_text("t", "test", np.asarray(["Ein Mann", "Eine Frau"], dtype=object)) is None
    assert constant_text("t", "test", np.asarray(["Ein Mann"], dtype=object)) is None


def test_a_score_whose_interval_reaches_the_majoritys_is_doubted():
    scores, around = {"accuracy": 0.7, "f1": 0.9}, {"accuracy": (0.66, 0.74), "f1": (0.87, 0.92)}
    doubt = no_better_than_majority("glue/mrpc", scores, around, {"accuracy": 0.684, "f1": 0.812})
    assert doubt is not None
    assert "accuracy 0.700 [0.660, 0.740] against 0.684" in doubt
    assert "f1" not in doubt


def test_a_score_below_the_majoritys_is_doubted_too():
    assert no_better_than_majority("t", {"f1": 0.5}, {"f1": (0.4, 0.6)}, {"f1": 0.8}) is not None


def test_a_clear_score_is_not_and_neither_is_one_without_a_guesser():
    assert no_better_than_majority("t", {"f1": 0.9}, {"f1": (0.85, 0.95)}, {"f1": 0.8}) is None
    assert no_better_than_majority("t", {"f1": 0.5}, {"f1": (0.4, 0.6)}, {}) is None


@pytest.mark.parametrize(("bar", "doubted"), [(7.0, False), (6.0, True), (5.5, True), (3.0, True)])
def test_a_score_that_is_better_when_smaller_is_doubted_where_the_majoritys_is_no_larger(bar, doubted):
    doubt = no_better_than_majority("t", {"perplexity": 5.0}, {"perplexity": (4.0, 6.0)}, {"perplexity": bar})
    assert (doubt is not None) is doubted


@dataclass(frozen=True)
class Lengths(SplitPredictions):
    """A kind that says no more than it must."""

    lengths: np.ndarray

    @property
    def labels(self):
        return np.asarray(self.rows.labels)

    @property
    def answers(self):
        return self.lengths

    def table(self):
        return pa.table({**self.key_columns(), "length": pa.array(self.lengths)})


def test_a_kind_that_says_no_more_than_it_must_is_served_by_the_defaults():
    rows = Rows(["a", "b c", "d"], None, [1, 2, 2], [4, 5, 6])
    predictions = Lengths("lengths", "test", "", rows, np.array([1, 2, 3]))
    assert predictions.columns(None) == {
        "index": [4, 5, 6],
        "text": ["a", "b c", "d"],
        "prediction": ["1", "2", "3"],
        "length": [1, 2, 3],
    }

    def right(answers, labels):
        return {"right": float((answers == labels).mean())}

    low, high = predictions.intervals(None, right, 0)["right"]
    assert low < 2 / 3 < high
    assert predictions.intervals(None, right, 0, np.array([0, 1]), 20) == {"right": (1.0, 1.0)}
    assert [each.tolist() for each in predictions.part(np.array([2]))] == [[3], [2]]
    assert predictions.scored_examples(None) is None
    assert predictions.doubt(None) is None
