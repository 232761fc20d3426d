"""What every metric in the METRICS table must do."""

import subprocess
import sys

import numpy as np
import pytest

from pipelines.core.registry import METRICS
from pipelines.core.scores import score_names
from pipelines.metrics.base import load_metric

SENTENCE = "a man in an orange hat is starring at something while two dogs run over the green grass"
WORDS = SENTENCE.split()
CONSTANT = {
    "classes": (0, 1),
    "numbers": (0.0, 1.0),
    "texts": ("", "a man"),
    "answers": ("", "a man"),
    "tags": (("O",) * 6, ("B-X",) * 6),
}
"""What a model may say of everything, by what a metric reads."""


def values(name: str) -> str:
    return METRICS.load(name).values


def compute(name: str):
    return load_metric(name).compute


def objects(rows):
    """An array of texts, lists or tuples."""
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


def perfect(name: str, references):
    """Predictions without a mistake."""
    return objects([answers[0] for answers in references]) if values(name) == "answers" else references


def example(kind: str, rows: int = 40):
    """(predictions, references), most of them right."""
    random = np.random.default_rng(7)
    if kind == "numbers":
        references = random.normal(size=rows)
        return references + random.normal(size=rows), references
    if kind == "classes":
        references = random.integers(0, 2, rows)
        return np.where(random.random(rows) < 0.7, references, 1 - references), references
    if kind == "texts":
        references = objects([" ".join(random.choice(WORDS, 12)) for _ in range(rows)])
        wrong = [" ".join(text.split()[::-1]) for text in references]
    elif kind == "answers":
        texts = [" ".join(random.choice(WORDS, 3)) for _ in range(rows)]
        references = objects([(text, "a hat") for text in texts])
        return objects([text if random.random() < 0.7 else "a man" for text in texts]), references
    else:
        references = objects([tuple(random.choice(["O", "B-X", "I-X", "B-Y"], 6)) for _ in range(rows)])
        wrong = [("O",) * 6] * rows
    return objects(
        [one if random.random() < 0.7 else two for one, two in zip(references, wrong, strict=True)]
    ), references


@pytest.mark.parametrize("name", METRICS)
def test_plain_floats_under_the_names_of_its_scores(name):
    result = compute(name)(*example(values(name)))
    assert tuple(result) == score_names((name,))
    assert all(type(value) is float for value in result.values())


@pytest.mark.parametrize("name", METRICS)
def test_perfect_predictions_score_the_most(name):
    _, references = example(values(name))
    for value in compute(name)(perfect(name, references), references).values():
        assert value == pytest.approx(METRICS.load(name).best)


@pytest.mark.parametrize("name", METRICS)
def test_the_order_of_examples_makes_no_difference(name):
    predictions, references = example(values(name))
    order = np.random.default_rng(1).permutation(len(references))
    assert compute(name)(predictions[order], references[order]) == pytest.approx(compute(name)(predictions, references))


@pytest.mark.parametrize("name", METRICS)
def test_constant_predictions_never_give_nan(name):
    _, references = example(values(name))
    for constant in CONSTANT[values(name)]:
        constants = objects([constant] * len(references)) if isinstance(constant, str | tuple) else [constant] * 40
        assert all(np.isfinite(value) for value in compute(name)(constants, references).values())


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
    predictions, references = example(values(name))
    for start in range(0, len(references), 16):
        metric.add_batch(predictions=predictions[start : start + 16], references=references[start : start + 16])
    assert metric.compute() == compute(name)(predictions, references)
    scores = metric.compute(predictions=perfect(name, references), references=references)
    assert scores[score_names((name,))[0]] == pytest.approx(METRICS.load(name).best)


@pytest.mark.parametrize("kind", ["classes", "numbers", "texts"])
def test_evaluate_combines_them(kind, tmp_path):
    import evaluate

    names = [name for name in METRICS if values(name) == kind]
    combined = evaluate.combine([METRICS.load(name).as_evaluate()(cache_dir=str(tmp_path)) for name in names])
    predictions, references = example(kind)
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
        "heavy = {'evaluate', 'datasets', 'torch', 'sklearn', 'scipy', 'sacrebleu'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
