from __future__ import annotations

import numpy as np
import pytest
from tests.pipelines.data.test_preference_pairs import rows

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import NotDefined, longer, shorter
from pipelines.evaluation.examples import scored_examples
from pipelines.tasks.preference.evaluation import PairPredictions, difference, score_pairs


class Task:
    name = "pairs"
    kind = "preference"


PAIRS = rows(
    ("the cat", " runs", " sleeps on it"), ("a dog", " is good and fine", " is bad"), ("a film", " good", " dull")
)
SCORES = np.array([[1.0, 0.0], [0.5, 2.0], [3.0, 3.0]], dtype=np.float32)


def said(scores=SCORES):
    return PairPredictions("pairs", "test", "", PAIRS, scores)


def test_the_score_is_the_share_in_order_and_a_tie_counts_half():
    assert score_pairs(Task())(SCORES, said().labels) == {"accuracy": pytest.approx(0.5)}
    assert score_pairs(Task())(SCORES, None) == {"accuracy": pytest.approx(0.5)}  # the labels are not looked at


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(ModelError, match="NaN or infinity for 1 of 3 pairs"):
        score_pairs(Task())(np.where(SCORES == 0.5, np.nan, SCORES), None)
    with pytest.raises(ModelError, match="two scores a pair"):
        score_pairs(Task())(SCORES[:, :1], None)
    with pytest.raises(DataError, match="has no pair to score"):
        score_pairs(Task())(SCORES[:0], None)


def test_the_table_holds_both_answers_with_their_scores():
    table = said().table().to_pylist()
    assert table[1] | {"logits": None} == {
        "benchmark": "pairs",
        "split": "test",
        "index": 11,
        "text": "a dog",
        "chosen": " is good and fine",
        "rejected": " is bad",
        "score_chosen": 0.5,
        "score_rejected": 2.0,
        "label": 0,
        "prediction": 1,
        "logits": None,
    }


def test_mistakes_are_read_with_what_was_preferred():
    found = scored_examples(said(), Task())
    assert found.wrong.tolist() == [False, True, False]
    assert found.gold[1] == " is good and fine"
    assert found.said[1] == " is bad"
    assert found.confidence[1] == pytest.approx(1 / (1 + np.exp(-1.5)))


def test_equal_scores_everywhere_are_a_doubt():
    assert "the same score" in said(np.ones_like(SCORES)).doubt(Task())
    assert said().doubt(Task()) is None


def test_guessers_look_at_nothing_but_the_length():
    assert score_pairs(Task())(longer(None, PAIRS, 1), None) == {"accuracy": pytest.approx((0 + 1 + 0.5) / 3)}
    assert score_pairs(Task())(shorter(None, PAIRS, 1), None) == {"accuracy": pytest.approx((1 + 0 + 0.5) / 3)}
    with pytest.raises(NotDefined, match="no pairs of answers"):
        longer(None, Rows(["a"], None, [0], [0]), 2)


def test_the_difference_to_a_guesser_is_paired():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(400, 2)) + [0.5, 0]
    worse = np.where(generator.random((400, 1)) < 0.1, scores[:, ::-1], scores)  # one pair in ten turned round
    found = difference(scores, worse, 7)
    gaps = (scores[:, 0] > scores[:, 1]).astype(float) - (worse[:, 0] > worse[:, 1])
    assert found["difference"] == pytest.approx(gaps.mean())
    low, high = found["interval"]
    assert low < found["difference"] < high
    assert high - low == pytest.approx(2 * 1.96 * gaps.std() / 20, rel=0.15)
    assert difference(scores, scores, 7) == {"difference": 0.0, "interval": [0.0, 0.0]}
    assert difference(scores, worse, 7) == found
