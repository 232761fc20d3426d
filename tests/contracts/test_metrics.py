"""What every metric in the METRICS table must do."""

import subprocess
import sys

import numpy as np
import pytest

from pipelines.core.registry import METRICS
from pipelines.core.scores import score_names
from pipelines.metrics.base import load_metric

CLASSES = ("accuracy", "f1", "matthews_correlation")
NUMBERS = ("pearson", "spearmanr")
TEXTS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact_match")
ANSWERS = ("squad", "squad_v2")
TAGS = ("seqeval",)
PERFECT = dict.fromkeys((*TEXTS, "squad", "squad_v2"), 100.0)
"""What perfect predictions score, where it is not 1."""
CONSTANTS = dict.fromkeys((*TEXTS, *ANSWERS), ("", "a man")) | {"seqeval": (("O",) * 6, ("B-X",) * 6)}
"""What a model may say of everything."""
SENTENCE = "a man in an orange hat is starring at something while two dogs run over the green grass"
WORDS = SENTENCE.split()


def compute(name: str):
    return load_metric(name).compute


def objects(values):
    """An array of texts, lists or tuples."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def said_rightly(name: str, references):
    """Predictions without a mistake."""
    return objects([answers[0] for answers in references]) if name in ANSWERS else references


def example(name: str, rows: int = 40):
    random = np.random.default_rng(7)
    if name in NUMBERS:
        references = random.normal(size=rows)
        return references + random.normal(size=rows), references
    if name in TEXTS:
        references = [" ".join(random.choice(WORDS, 12)) for _ in range(rows)]
        written = [text if random.random() < 0.7 else " ".join(text.split()[::-1]) for text in references]
        return np.asarray(written, dtype=object), np.asarray(references, dtype=object)
    if name in ANSWERS:
        texts = [" ".join(random.choice(WORDS, 3)) for _ in range(rows)]
        said = [text if random.random() < 0.7 else "a man" for text in texts]
        return objects(said), objects([(text, "a hat") for text in texts])
    if name in TAGS:
        tags = [tuple(random.choice(["O", "B-X", "I-X", "B-Y"], 6)) for _ in range(rows)]
        return objects([row if random.random() < 0.7 else ("O",) * 6 for row in tags]), objects(tags)
    references = random.integers(0, 2, rows)
    return np.where(random.random(rows) < 0.7, references, 1 - references), references


def test_the_lists_here_are_complete():
    assert {*CLASSES, *NUMBERS, *TEXTS, *ANSWERS, *TAGS} == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_plain_floats_under_the_names_of_its_scores(name):
    result = compute(name)(*example(name))
    assert tuple(result) == score_names((name,))
    assert all(type(value) is float for value in result.values())


@pytest.mark.parametrize("name", METRICS)
def test_perfect_predictions_score_the_most(name):
    _, references = example(name)
    for value in compute(name)(said_rightly(name, references), references).values():
        assert value == pytest.approx(PERFECT.get(name, 1.0))


@pytest.mark.parametrize("name", METRICS)
def test_the_order_of_examples_makes_no_difference(name):
    predictions, references = example(name)
    order = np.random.default_rng(1).permutation(len(references))
    assert compute(name)(predictions[order], references[order]) == pytest.approx(compute(name)(predictions, references))


@pytest.mark.parametrize("name", METRICS)
def test_constant_predictions_never_give_nan(name):
    _, references = example(name)
    for constant in CONSTANTS.get(name, (0, 1)):
        constants = objects([constant] * len(references)) if name in CONSTANTS else np.full(len(references), constant)
        result = compute(name)(constants, references)
        assert all(np.isfinite(value) for value in result.values())
        if "correlation" in name or name in NUMBERS:
            assert result[name] == 0.0


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("predictions", "references"), [([], []), ([1], [1, 0]), ([float("nan"), 1], [1, 0]), ([[1, 0]], [[1, 0]])]
)
def test_what_cannot_be_scored_is_refused(name, predictions, references):
    with pytest.raises(ValueError):
        compute(name)(predictions, references)


@pytest.mark.parametrize("name", METRICS)
def test_the_evaluate_metric_adds_batches_up(name, tmp_path):
    import evaluate

    metric = METRICS.load(name).as_evaluate()(cache_dir=str(tmp_path))
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == name.lower()
    predictions, references = example(name)
    for start in range(0, len(references), 16):
        metric.add_batch(predictions=predictions[start : start + 16], references=references[start : start + 16])
    assert metric.compute() == compute(name)(predictions, references)
    perfect = metric.compute(predictions=said_rightly(name, references), references=references)
    assert perfect[score_names((name,))[0]] == pytest.approx(PERFECT.get(name, 1.0))


@pytest.mark.parametrize("names", [CLASSES, NUMBERS, TEXTS])
def test_evaluate_combines_them(names, tmp_path):
    import evaluate

    combined = evaluate.combine([METRICS.load(name).as_evaluate()(cache_dir=str(tmp_path)) for name in names])
    predictions, references = example(names[0])
    combined.add_batch(predictions=predictions, references=references)
    expected = {}
    for name in names:
        expected |= compute(name)(predictions, references)
    assert combined.compute() == expected


@pytest.mark.parametrize("name", METRICS)
def test_the_class_is_made_once_and_found_under_its_own_name(name):
    made = METRICS.load(name).as_evaluate()
    assert made is METRICS.load(name).as_evaluate()
    assert METRICS[name] == f"{made.__module__}:{made.__name__}"


def test_scoring_does_not_wait_for_evaluate():
    modules = [METRICS.module(name) for name in METRICS]
    code = (
        f"import sys; from importlib import import_module; [import_module(name) for name in {modules}]; "
        "heavy = {'evaluate', 'datasets', 'torch', 'sklearn', 'scipy', 'sacrebleu'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
