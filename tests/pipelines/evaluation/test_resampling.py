from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from scipy import stats
from sklearn.metrics import f1_score

from pipelines.evaluation.resampling import mean_interval, paired_difference, resamples, rescored
from pipelines.tasks.base import resolve


def test_without_test_noise_the_interval_over_seeds_is_students():
    scores = [0.80, 0.83, 0.79, 0.84, 0.81]
    found = mean_interval(scores, [np.full(200_000, value) for value in scores], seed=1)
    low, high = stats.t.interval(0.95, df=4, loc=np.mean(scores), scale=np.std(scores, ddof=1) / np.sqrt(5))
    assert (found.low, found.high) == pytest.approx((low, high), abs=3e-4)


def test_with_one_seed_the_interval_is_the_bootstrap_over_examples():
    correct = np.random.default_rng(0).random(500) < 0.7
    draws = correct[resamples(500, seed=3)].mean(axis=1)
    found = mean_interval([correct.mean()], [draws], seed=1)
    assert (found.low, found.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]))


def test_a_single_score_that_cannot_be_resampled_has_no_interval():
    assert mean_interval([0.8], None, seed=1) is None
    assert paired_difference([0.8], [0.7], None, None, seed=1) is None


def test_the_paired_interval_agrees_with_scipys_paired_bootstrap():
    random = np.random.default_rng(5)
    one = random.random(600) < 0.8
    two = np.where(random.random(600) < 0.9, one, ~one)  # the same answers nine times out of ten
    drawn = resamples(600, seed=1, count=4000)
    found = paired_difference([one.mean()], [two.mean()], [one[drawn].mean(axis=1)], [two[drawn].mean(axis=1)], seed=1)
    reference = stats.bootstrap(
        (one.astype(float), two.astype(float)),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.004)
    unpaired = np.sqrt(one.var() / 600 + two.var() / 600) * 2 * 1.96
    assert found.high - found.low < 0.8 * unpaired  # pairing is what makes it narrow


def test_seeds_that_are_no_pairs_count_twice():
    one, two = [0.8, 0.9, 0.7], [0.7, 0.8, 0.6]  # paired, every difference is 0.1
    paired = paired_difference(one, two, None, None, seed=1)
    assert (paired.low, paired.high) == pytest.approx((0.1, 0.1))
    apart = paired_difference(one, two, None, None, seed=1, paired_seeds=False)
    assert apart.low < 0 < apart.high


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Two methods of known accuracy, three seeds, 300 examples: training and test both by chance."""
    random = np.random.default_rng(11)
    drawn = resamples(300, seed=1, count=400)
    held = 0
    for _ in range(300):
        ease = random.normal(0.0, 1.0, 300)  # what makes an example easy is common to both methods
        answers = []
        for method in (1.0, 0.8):
            skills = method + random.normal(0.0, 0.15, 3)
            answers.append([(random.random(300) < 1 / (1 + np.exp(-(skill + ease)))) for skill in skills])
        scores = [[answer.mean() for answer in each] for each in answers]
        draws = [[answer[drawn].mean(axis=1) for answer in each] for each in answers]
        found = paired_difference(scores[0], scores[1], draws[0], draws[1], seed=1)
        held += found.low <= TRUTH <= found.high
    assert 0.92 <= held / 300 <= 1.0  # 95 % asked for; the standard error of this count is 1.3 %


def _truth():
    """The difference in accuracy of the two methods above, by integration over seeds and examples."""
    grid = np.linspace(-8, 8, 4001)
    values = []
    for method in (1.0, 0.8):
        weights = stats.norm.pdf(grid, method, np.sqrt(1 + 0.15**2))
        values.append(np.sum(weights / (1 + np.exp(-grid))) / np.sum(weights))
    return values[0] - values[1]


TRUTH = _truth()


def test_the_same_seed_draws_the_same_examples():
    assert (resamples(50, 1) == resamples(50, 1)).all()
    assert not (resamples(50, 1) == resamples(50, 2)).all()


def test_the_p_value_over_seeds_is_that_of_the_paired_t_test():
    one, two = [0.80, 0.83, 0.79, 0.84, 0.81], [0.78, 0.80, 0.80, 0.80, 0.79]
    found = paired_difference(one, two, None, None, seed=1)
    assert found.p == pytest.approx(stats.ttest_rel(one, two).pvalue, rel=0.03)
    assert paired_difference(one, one, None, None, seed=1).p == 1.0


def test_a_p_value_below_the_level_goes_with_an_interval_without_zero():
    random = np.random.default_rng(4)
    for gain in (0.0, 0.02, 0.04, 0.08):
        one, two = random.random(500) < 0.7 + gain, random.random(500) < 0.7
        drawn = resamples(500, seed=1)
        found = paired_difference(
            [one.mean()], [two.mean()], [one[drawn].mean(axis=1)], [two[drawn].mean(axis=1)], seed=1
        )
        assert found.clear == (found.p <= 0.05) or found.p == pytest.approx(0.05, abs=0.003)


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


@pytest.mark.parametrize(("shift", "margin"), [(0.0, 0.02), (0.01, 0.02), (0.05, 0.02), (-0.01, 0.05)])
def test_equivalence_is_two_one_sided_t_tests_where_only_seeds_vary(shift, margin):
    reference = np.array([0.80, 0.81, 0.795, 0.805, 0.79])
    scores = reference + shift + np.array([0.004, -0.002, 0.001, -0.005, 0.002])
    found = paired_difference(scores, reference, None, None, 1, margin=margin)
    differences = scores - reference
    above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
    assert found.p_equivalent == pytest.approx(max(above, below), abs=0.003)
    assert paired_difference(scores, reference, None, None, 1).p_equivalent is None
