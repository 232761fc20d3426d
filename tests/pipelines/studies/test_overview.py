import numpy as np
import pytest

from pipelines.reports.results import Result
from pipelines.studies.overview import MEAN, overviews
from pipelines.studies.table import row_of

RNG = np.random.default_rng(0)
NOISE = {name: RNG.normal(0, 0.01, 1000) for name in ("glue/rte", "glue/mrpc", "squad")}


class Scored(Result):
    """A result whose examples are all of its benchmark."""

    def __init__(self, benchmark, metrics, drawn=True):
        super().__init__(benchmark, "evaluate", "tune", metrics)
        most = max(1.0, *metrics.values())
        self.draws = (
            {name: value + (100 if most > 1 else 1) * NOISE[benchmark] for name, value in metrics.items()}
            if drawn
            else {}
        )

    def same_examples(self, other):
        return self.benchmark == other.benchmark


def row(labels, benchmark, scores, metric="accuracy", **beside):
    results = {(str(seed),): Scored(benchmark, {metric: score, **beside}) for seed, score in enumerate(scores)}
    return row_of(labels, "evaluate", benchmark, results, name=labels["way"])


def block(task, benchmark, ways, metric="accuracy", **beside):
    return (
        {"task": task},
        benchmark,
        [row({"task": task, "way": way}, benchmark, scores, metric, **beside) for way, scores in ways.items()],
    )


def test_the_mean_of_a_line_is_that_of_its_tasks_seed_by_seed():
    rte = block("rte", "glue/rte", {"alone": [0.5, 0.6], "together": [0.7, 0.8]})
    squad = block("squad", "squad", {"alone": [40.0, 60.0], "together": [50.0, 70.0]}, "f1", exact_match=10.0)
    [found] = overviews([rte, squad], "alone", "holm")
    assert found.columns == ("glue/rte", "squad")
    assert found.metrics == ("accuracy", "f1")
    alone, together = (line.mean.figures[MEAN] for line in found.lines)
    assert alone.values == pytest.approx((0.45, 0.6))  # (0.5 + 40 / 100) / 2, (0.6 + 60 / 100) / 2
    assert together.mean == pytest.approx((0.7 + 0.5 + 0.8 + 0.7) / 4)
    assert together.difference.value == pytest.approx(0.15)
    assert [line.mean.verdict() for line in found.lines] == ["reference", "better"]


def test_the_difference_of_means_knows_the_examples_of_every_task():
    # one seed: the interval is that of the resampled examples, here the same noise on both sides, which pairs away
    blocks = [
        block("rte", "glue/rte", {"alone": [0.5], "together": [0.6]}),
        block("mrpc", "glue/mrpc", {"alone": [0.5], "together": [0.7]}),
    ]
    [found] = overviews(blocks, "alone", "none")
    mean = found.lines[1].mean.figures[MEAN]
    assert (mean.difference.low, mean.difference.high) == pytest.approx((0.15, 0.15))
    drawn = (NOISE["glue/rte"] + NOISE["glue/mrpc"]) / 2
    assert mean.interval == pytest.approx(tuple(0.65 + np.quantile(drawn, [0.025, 0.975])))


def test_what_cannot_be_averaged_has_no_mean():
    whole = block("rte", "glue/rte", {"alone": [0.5, 0.6], "together": [0.7, 0.8]})
    other_seeds = block("mrpc", "glue/mrpc", {"alone": [0.5, 0.6], "together": [0.7]})
    [found] = overviews([whole, other_seeds], "alone", "holm")
    assert [line.mean is None for line in found.lines] == [False, True]
    [found] = overviews([whole, block("mrpc", "glue/mrpc", {"alone": [0.5, 0.6]})], "alone", "holm")
    assert [line.mean is None for line in found.lines] == [False, True]
    assert [line.rows[1] is None for line in found.lines] == [False, True]
    [found] = overviews(
        [whole, block("mrpc", "glue/mrpc", {"alone": [3.0, 4.0], "together": [2.0, 3.0]}, "perplexity")],
        "alone",
        "holm",
    )
    assert not found.averaged


def test_only_keys_that_change_the_task_are_laid_side_by_side():
    def of(size, task):
        labels, benchmark, rows = block(task, f"glue/{task}", {"full": [0.5], "lora": [0.6]})
        return {"size": size, **labels}, benchmark, rows

    blocks = [of(size, task) for size in ("small", "large") for task in ("rte", "mrpc")]
    found = overviews(blocks, "full", "holm")
    assert [each.labels for each in found] == [{"size": "small"}, {"size": "large"}]
    assert all(each.columns == ("glue/rte", "glue/mrpc") for each in found)
    assert overviews(blocks[:1], "full", "holm") == []  # one task is no overview
    assert overviews([blocks[0], blocks[2]], "full", "holm") == []  # two sizes on one task are none either


def test_the_same_benchmark_twice_is_told_apart_by_its_entry():
    short, long, other = (
        block(task, benchmark, {"full": [0.5]})
        for task, benchmark in (("short", "glue/rte"), ("long", "glue/rte"), ("mrpc", "glue/mrpc"))
    )
    [found] = overviews([short, long, other], None, "holm")
    assert found.columns == ("task short", "task long", "glue/mrpc")


def test_p_values_of_the_means_are_corrected_together():
    tasks = [("rte", "glue/rte"), ("mrpc", "glue/mrpc")]
    ways = {"alone": [0.50, 0.52, 0.49], "b": [0.60, 0.61, 0.59], "c": [0.55, 0.60, 0.52]}
    [found] = overviews([block(task, benchmark, ways) for task, benchmark in tasks], "alone", "holm")
    alone, one, two = (line.mean for line in found.lines)
    assert alone.p_corrected is None
    least, most = sorted((each.figures[MEAN].difference.p, each.p_corrected) for each in (one, two))
    assert least[1] == pytest.approx(min(1, 2 * least[0]))
    assert most[1] == pytest.approx(max(most[0], least[1]))
