from dataclasses import replace

import pytest

from pipelines.evaluation.resampling import Estimate
from pipelines.studies.overview import MEAN, Overview, OverviewLine
from pipelines.studies.readme import (
    blocks,
    cells,
    count,
    glance,
    glance_heading,
    glance_key,
    heading,
    headline,
    notes,
    seconds,
    sentence,
    size,
    summary_line,
)
from pipelines.studies.table import Figure, StudyRow


def test_amounts_are_short():
    assert [count(22_713_984.0), count(1500.0), count(12.0), count(None)] == ["22.7 M", "1.5 k", "12", ""]
    assert [size(3.2e6), size(512.0)] == ["3.2 MB", "512 B"]
    assert [seconds(42.0), seconds(186.0), seconds(7200.0)] == ["42 s", "3.1 min", "2.0 h"]


def lora(low, high, **more):
    figure = Figure(0.79, 0.01, (0.78, 0.8), (0.75, 0.83), Estimate((low + high) / 2, low, high))
    return StudyRow(
        {"task": "a", "method": "lora"},
        "lora",
        "glue/mrpc",
        "evaluate",
        expected=3,
        counts={"done": 1, "reused": 1, "failed": 1},
        figures={"accuracy": figure},
        **more,
    )


def test_a_row_tells_its_score_its_difference_and_what_is_missing():
    assert cells(lora(-0.03, 0.01), "full")[:5] == [
        "lora",
        "2/3",
        "0.790 ± 0.010",
        "0.750 – 0.830",
        "-0.010 (-0.030 to +0.010)",
    ]


@pytest.mark.parametrize(
    ("low", "high", "searched", "said"),
    [
        (-0.03, 0.01, True, "lora: accuracy -0.010 (-0.030 to +0.010) against full, inside the noise."),
        (-0.03, -0.01, True, "lora: clearly worse than full, accuracy -0.020 (-0.030 to -0.010)."),
        (
            -0.03,
            -0.01,
            False,
            "lora: worse than full, accuracy -0.020 (-0.030 to -0.010). No claim: no search of its settings.",
        ),
    ],
)
def test_a_difference_is_claimed_only_outside_the_noise_and_after_a_search(low, high, searched, said):
    row = lora(low, high)
    row.searched = searched
    row.figures["accuracy"] = replace(row.figures["accuracy"], values=(0.78, 0.79, 0.80))
    row.reference_seeds = 3
    assert sentence(row, "full") == said


def test_a_reference_with_too_few_seeds_decides_nothing():
    row = lora(-0.03, -0.01)
    row.searched, row.reference_seeds = True, 2
    row.figures["accuracy"] = replace(row.figures["accuracy"], values=(0.78, 0.79, 0.80))
    assert sentence(row, "full").startswith("lora: worse than full,")
    assert sentence(row, "full").endswith("No claim: 2 of 3 seeds.")


def test_rows_without_a_result_stand_with_their_benchmark():
    missing = StudyRow({"task": "a", "method": "ia3"}, "ia3", expected=3, counts={"failed": 3})
    other = StudyRow({"task": "b", "method": "lora"}, "lora", "glue/rte", "evaluate", figures=lora(0, 1).figures)
    found = blocks({"compared": "method"}, [lora(0, 1), missing, other])
    assert [(benchmark, [row.name for row in rows]) for _, benchmark, rows in found] == [
        ("glue/mrpc", ["lora", "ia3"]),
        ("glue/rte", ["lora"]),
    ]


def test_what_is_missing_is_counted_and_named():
    data = {
        "counts": {"done": 1, "failed": 1, "refused": 0, "stopped": 0, "queued": 2},
        "search": [],
        "cells": [{"cell": "cells/02", "labels": {"method": "lora"}, "status": "failed", "message": "no such column"}],
    }
    assert summary_line(data) == "1 of 4 cells are done; 1 failed; 2 missing."
    assert "- method lora (cells/02): failed: no such column" in notes(data)


def test_the_headline_names_the_best_and_says_whether_its_lead_is_noise():
    full = StudyRow(
        {"task": "a", "method": "full"},
        "full",
        expected=3,
        counts={"done": 3},
        figures={"accuracy": Figure(0.75, 0.01, (0.75,), None)},
        is_reference=True,
    )
    assert headline([full, lora(-0.01, 0.09)], "full") == (
        "Highest accuracy: lora, 0.790 ± 0.010, but its difference from full is inside the noise. 1 of 2 rows "
        "lack seeds."
    )
    assert (
        headline([full, lora(0.01, 0.09)], "full")
        == "Highest accuracy: lora, 0.790 ± 0.010, better than full outside the noise. 1 of 2 rows lack seeds."
    )
    assert headline([full, lora(0.01, 0.09)], None).startswith("Highest accuracy: lora, 0.790 ± 0.010. ")
    assert headline([full], "full") == ""


def test_less_perplexity_is_the_better_one():
    low, high = (
        StudyRow({}, name, expected=1, counts={"done": 1}, figures={"perplexity": Figure(value, None, (value,), None)})
        for name, value in (("a", 8.0), ("b", 9.0))
    )
    assert headline([high, low], None) == "Lowest perplexity: a, 8.000."


def test_a_heading_names_its_keys():
    assert heading({"encoder": "mini", "task": "sst2"}, "glue/sst2") == "glue/sst2 (encoder mini, task sst2)"
    assert [heading({}, "glue/sst2"), heading({"encoder": "mini"}, ""), heading({}, "")] == [
        "glue/sst2",
        "encoder mini",
        "",
    ]


def test_tasks_at_a_glance_say_what_is_outside_the_noise():
    full = StudyRow(
        {}, "full", "glue/mrpc", "evaluate", figures={"accuracy": Figure(0.8, None, (0.8,), None)}, is_reference=True
    )
    mean = StudyRow(
        {}, "lora", MEAN, figures={MEAN: Figure(0.795, 0.01, (0.79, 0.8), None, Estimate(0.0, -0.01, 0.01, 0.5))}
    )
    base = StudyRow({}, "full", MEAN, figures={MEAN: Figure(0.795, None, (0.795,), None)}, is_reference=True)
    lines = (
        OverviewLine("full", (full, full), base),
        OverviewLine("lora", (lora(-0.03, -0.01), lora(0.01, 0.03)), mean),
        OverviewLine("ia3", (None, lora(-0.01, 0.03)), None),
    )
    overview = Overview({"encoder": "mini"}, ("glue/mrpc", "glue/rte"), ("accuracy", "accuracy"), lines)
    assert glance_heading(overview) == "2 tasks at a glance (encoder mini)"
    assert [[text for text, _ in line] for line in glance(overview, "full")] == [
        ["", "glue/mrpc accuracy", "glue/rte accuracy", "mean", "against full, 95 %", "p"],
        ["full", "0.800", "0.800", "0.795", "reference", ""],
        [
            "lora",
            "0.790 ± 0.010 (-0.020) ▼",
            "0.790 ± 0.010 (+0.020) ▲",
            "0.795 ± 0.010",
            "+0.000 (-0.010 to +0.010)",
            "0.500",
        ],
        ["ia3", "", "0.790 ± 0.010 (+0.010)", "", "", ""],
    ]
    assert [verdict for _, verdict in glance(overview, "full")[2]] == [
        "",
        "worse",
        "better",
        "inside the noise",
        "",
        "",
    ]
    assert (
        glance_key(Overview({}, ("a", "b"), ("perplexity", "accuracy"), ()), None)
        == "There is no mean, for not all scores run to a highest one."
    )
