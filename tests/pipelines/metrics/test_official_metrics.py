"""Every metric equals the scorer that publications use, over thousands of random cases each with the long tests.

Peers: scikit-learn, scipy, rouge_score, sacrebleu, and the official scripts of SQuAD and of CoNLL written down again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.metrics.base import load_metric
from tests.covering import examples
from tests.pipelines.metrics.official_squad import version_1, version_2
from tests.pipelines.metrics.test_seqeval import official_entities
from tests.pipelines.metrics.test_squad import TEXTS

THOUSANDS = examples(40, 2000)
SPOKEN = "the a cat Cat dogs run-ning, 3 4th naïve über . ! it's"
SENTENCES = st.lists(st.sampled_from(SPOKEN.split()), max_size=9).map(" ".join)
FLOATS = st.floats(-1e3, 1e3, allow_nan=False, width=32) | st.sampled_from([0.0, 1.0, 2.5])


def compute(name: str, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
    found: dict[str, float] = load_metric(name).compute(predictions, references, **options)
    return found


def pairs(values: Any, least: int = 1, most: int = 12) -> Any:
    return st.lists(st.tuples(values, values), min_size=least, max_size=most).map(
        lambda rows: tuple(map(list, zip(*rows, strict=True)))
    )


@THOUSANDS
@given(
    st.integers(2, 5).flatmap(lambda classes: st.tuples(st.just(classes), pairs(st.integers(0, classes - 1), most=30)))
)
def test_classes_as_scikit_learn(case):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    classes, (said, right) = case
    average = "binary" if classes == 2 else "macro"
    assert compute("accuracy", said, right, classes=classes)["accuracy"] == pytest.approx(
        accuracy_score(right, said), abs=1e-12
    )
    assert compute("f1", said, right, classes=classes)["f1"] == pytest.approx(
        f1_score(right, said, average=average, zero_division=0.0), abs=1e-12
    )
    found = compute("matthews_correlation", said, right, classes=classes)["matthews_correlation"]
    assert found == pytest.approx(matthews_corrcoef(right, said), abs=1e-12)


@THOUSANDS
@given(pairs(FLOATS, least=2, most=30))
def test_numbers_as_scipy(case):
    from scipy.stats import pearsonr, spearmanr

    said, right = (np.asarray(values, dtype=np.float64) for values in case)
    if np.ptp(said) < 1e-3 or np.ptp(right) < 1e-3:  # 0 / 0, or too close to it for two ways of adding to agree
        return
    assert compute("pearson", said, right)["pearson"] == pytest.approx(pearsonr(said, right)[0], abs=1e-6)
    assert compute("spearmanr", said, right)["spearmanr"] == pytest.approx(spearmanr(said, right)[0], abs=1e-9)


@THOUSANDS
@given(pairs(SENTENCES, most=6))
def test_overlaps_as_rouge_score(case):
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    each = [scorer.score(right, said) for said, right in zip(*case, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert compute(name, *case)[name] == pytest.approx(
            100.0 * np.mean([scores[name].fmeasure for scores in each]), abs=1e-9
        )


@THOUSANDS
@given(pairs(SENTENCES.filter(str.strip), most=6))
def test_corpora_as_sacrebleu(case):
    import sacrebleu

    said, right = case
    assert compute("bleu", said, right)["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, [right]).score, abs=1e-9)
    assert compute("chrf", said, right)["chrf"] == pytest.approx(sacrebleu.corpus_chrf(said, [right]).score, abs=1e-9)


@THOUSANDS
@given(pairs(st.sampled_from(["", " ", "a", " a", "A", "a b", "12"])))
def test_exact_matches_one_by_one(case):
    right = [said.strip() == true.strip() and said.strip() != "" for said, true in zip(*case, strict=True)]
    assert compute("exact_match", *case)["exact_match"] == pytest.approx(100.0 * sum(right) / len(right))


@THOUSANDS
@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=4)), min_size=1, max_size=8))
def test_answers_as_the_official_scripts(questions):
    said, right = [text for text, _ in questions], [answers for _, answers in questions]
    by_name = {str(at): answers for at, answers in enumerate(right)}, {str(at): text for at, text in enumerate(said)}
    second = version_2(*by_name, None)
    assert compute("squad_v2", said, right) == pytest.approx(
        {"exact_match": second["exact"], "f1": second["f1"]}, abs=1e-9
    )
    if all(right):
        assert compute("squad", said, right) == pytest.approx(version_1(*by_name), abs=1e-9)


@THOUSANDS
@given(
    st.lists(
        st.lists(st.tuples(*[st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])] * 2), min_size=1, max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_entities_as_conlleval(texts):
    said, right = ([[pair[side] for pair in text] for text in texts] for side in (0, 1))
    found, true = (
        {(at, *entity) for at, tags in enumerate(rows) for entity in official_entities(tags)} for rows in (said, right)
    )
    both = len(found & true)
    scores = compute("seqeval", said, right)
    precision, recall = both / len(found) if found else 0.0, both / len(true) if true else 0.0
    assert (scores["precision"], scores["recall"]) == pytest.approx((precision, recall))
    assert scores["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if both else 0.0)
    tags = [(one, other) for pair in zip(said, right, strict=True) for one, other in zip(*pair, strict=True)]
    assert scores["accuracy"] == pytest.approx(sum(one == other for one, other in tags) / len(tags))
