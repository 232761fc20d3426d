from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from sklearn.metrics import f1_score

from pipelines.evaluation.resampling import rescored
from pipelines.tasks.base import resolve

DRAWS = np.random.default_rng(0).integers(12, size=(20, 12))


def test_texts_are_resampled_as_their_metric_scores_them():
    texts = [
        "the cat sat on the mat today",
        "a dog ran in the park at noon",
        "birds sing early in the morning light",
    ] * 4
    references = [
        "the cat sat on a mat today",
        "a dog ran in the park at noon",
        "birds sang early in the bright morning",
    ] * 4
    whole = sacrebleu.corpus_bleu(texts, [references]).score
    found = rescored(
        SimpleNamespace(metrics=("bleu",)), {"hypothesis": texts, "reference": references}, {"bleu": whole}
    )
    drawn = found.resampled(DRAWS)["bleu"]
    expected = sacrebleu.corpus_bleu([texts[at] for at in DRAWS[7]], [[references[at] for at in DRAWS[7]]]).score
    assert drawn[7] == pytest.approx(expected)
    assert np.isfinite(drawn).all()
    assert found.right is None


def test_spans_are_right_where_they_match_exactly():
    part = {"answer": ["the Cat", "dog", ""] * 4, "answers": [["cat"], ["a bird"], []] * 4}
    found = rescored(resolve("squad_v2", "x"), part, {"exact_match": 200 / 3, "f1": 200 / 3})
    assert found.right.tolist() == [True, False, True] * 4
    assert found.resampled(DRAWS)["exact_match"] == pytest.approx(100 * found.right[DRAWS].mean(axis=1))


def test_tags_are_resampled_by_their_entities():
    true = [["B-PER", "I-PER", "O"], ["O", "B-LOC", "O"], ["O", "O", "O"]] * 4
    said = [["B-PER", "O", "O"], ["O", "B-LOC", "O"], ["B-LOC", "O", "O"]] * 4
    right, predicted, there = (
        np.tile([0, 1, 0], 4),
        np.tile([1, 1, 1], 4),
        np.tile([1, 1, 0], 4),
    )  # entities of the rows above
    found = rescored(
        SimpleNamespace(metrics=("seqeval",)),
        {"tokens": true, "tags": true, "predicted_tags": said},
        {"f1": 2 * 4 / (12 + 8)},
    )
    expected = [2 * right[taken].sum() / (predicted[taken].sum() + there[taken].sum()) for taken in DRAWS]
    assert found.resampled(DRAWS)["f1"] == pytest.approx(expected)


def test_mixed_answers_are_scored_as_if_one_model_had_given_them():
    random = np.random.default_rng(1)
    labels = random.integers(2, size=12)
    logits = [random.normal(size=(12, 2)).astype(np.float32) for _ in range(2)]
    swapped = random.random(12) < 0.5
    both = []
    for each in logits:
        said = each.argmax(axis=1)
        reported = {"accuracy": float((said == labels).mean()), "f1": float(f1_score(labels, said))}
        both.append(rescored(resolve("glue/mrpc", "x"), {"label": labels, "logits": each}, reported))
    said = np.where(swapped, logits[1].argmax(axis=1), logits[0].argmax(axis=1))
    assert both[0].mixed(both[1], swapped) == pytest.approx(
        {"accuracy": (said == labels).mean(), "f1": f1_score(labels, said)}
    )


def test_scores_that_cannot_be_had_again_are_not_used():
    labels, logits = np.array([0, 1]), np.eye(2, dtype=np.float32)
    assert rescored(resolve("glue/sst2", "x"), {"label": labels, "logits": logits}, {"accuracy": 0.5}) is None
    assert rescored(resolve("glue/sst2", "x"), {"label": None, "logits": logits}, {"accuracy": 1.0}) is None
    assert rescored(resolve("squad", "x"), {"answer": ["a"], "answers": [None]}, {"exact_match": 0.0}) is None
