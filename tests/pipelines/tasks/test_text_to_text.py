"""Tasks as text to text, in the words of the T5 paper's appendix D."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.registry import TASK_KINDS
from pipelines.tasks.base import SplitLocation
from pipelines.tasks.text_to_text import AsText


@pytest.fixture
def task(tmp_path: Path):
    def build(
        kind: str = "classification", columns: tuple[str, ...] = ("sentence1", "sentence2"), name: str = "glue/mrpc"
    ) -> AsText:
        label = ["equivalent", "not_equivalent", "equivalent"] if kind == "classification" else ["3.25", "0.0", "4.99"]
        rows = [f"one {n},two {n},{label[n]}" for n in range(3)]
        (tmp_path / "train.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
        places = {split: SplitLocation(str(tmp_path / "train.csv"), None, None) for split in ("train", "validation")}
        return AsText(
            TASK_KINDS.load(kind).task_class()(
                name, kind, columns, "label", ("accuracy", "f1") if kind == "classification" else ("pearson",), places
            )
        )  # type: ignore[arg-type]

    return build


def test_a_pair_is_written_with_its_columns_and_becomes_a_word(task):
    rows = task().rows("train")
    assert rows.texts[0] == "mrpc sentence1: one 0 sentence2: two 0"
    assert rows.pairs is None
    assert list(rows.labels) == ["equivalent", "not_equivalent", "equivalent"]
    assert task().rows("train", 2).index == range(2)


def test_a_single_text_is_written_with_its_column(task):
    assert task(columns=("sentence1",), name="cola").rows("train").texts[1] == "cola sentence1: one 1"


def test_numbers_are_rounded_to_a_fifth(task):
    # 3.25 is nearer to 3.2 than to 3.4; 4.99 to 5.0
    assert list(task("regression", name="glue/stsb").rows("train").labels) == ["3.2", "0.0", "5.0"]


@pytest.mark.parametrize(
    ("value", "text"), [(2.57, "2.6"), (0.09, "0.0"), (0.11, "0.2"), (5.0, "5.0"), (3.29, "3.2"), (3.31, "3.4")]
)
def test_each_number_goes_to_the_nearest_fifth(task, value: float, text: str):
    assert task("regression").answer(value) == text


def test_written_words_are_read_back(task):
    found = task().read(
        ["equivalent", " not_equivalent ", "banana", ""], ["equivalent", "equivalent", "not_equivalent", "equivalent"]
    )
    predictions, labels, unread = found
    assert labels == [0, 0, 1, 0]
    assert predictions == [0, 1, 0, 1]  # what is no class is a wrong one
    assert unread == 2


def test_written_numbers_are_read_back(task):
    predictions, labels, unread = task("regression").read(["3.8", "four", "1e99"], ["4.0", "1.0", "2.0"])
    assert predictions == [3.8, -1.0, -1.0]
    assert labels == [4.0, 1.0, 2.0]
    assert unread == 2


def test_scores_are_those_of_the_task(task):
    from pipelines.tasks.scoring import score

    found = score(task())(["equivalent", "not_equivalent", "x"], ["equivalent", "not_equivalent", "equivalent"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    numbers = score(task("regression"))(["1.0", "2.0", "3.0"], ["2.0", "4.0", "6.0"])
    assert numbers["pearson"] == pytest.approx(1.0)
