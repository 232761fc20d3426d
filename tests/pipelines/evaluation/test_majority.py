import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import NotDefined, majority


def rows(count: int, labels):
    return Rows(["text"] * count, None, labels, list(range(count)))


def test_the_most_frequent_training_class_is_guessed_for_everything():
    scores = majority(rows(4, [2, 0, 2, 1]), rows(3, [0, 0, 0]), outputs=4)
    assert scores.tolist() == [[0.25, 0.25, 0.5, 0.0]] * 3
    assert scores.argmax(axis=1).tolist() == [2, 2, 2]


def test_numbers_have_no_majority():
    with pytest.raises(NotDefined, match="no most frequent class"):
        majority(rows(2, [0.5, 1.5]), rows(1, [1.0]), outputs=1)


def test_mrpc_by_hand(mirror, monkeypatch):
    # 2,474 of 3,668 training pairs are paraphrases; so are 279 of the 408 for validation: F1 = 2·279 / (408 + 279)
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    from pipelines.core.registry import TASKS

    MRPC = TASKS.load("glue/mrpc")
    from pipelines.tasks.scoring import score

    train, validation = MRPC.rows("train"), MRPC.rows("validation")
    scores = score(MRPC)(majority(train, validation, 2), validation.labels)
    assert scores == pytest.approx({"accuracy": 279 / 408, "f1": 558 / 687})
