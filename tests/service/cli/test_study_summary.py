import io

from rich.console import Console

from service.cli.study_summary import blocks, counts, show
from tests.words import words_of


def row(name, task, benchmark, done=2):
    figure = {"mean": 0.8, "sd": None, "values": [0.8], "interval": None, "difference": None}
    return {
        "name": name,
        "labels": {"task": task, "method": name},
        "benchmark": benchmark,
        "metric": "accuracy" if benchmark else None,
        "metrics": {"accuracy": figure} if benchmark else {},
        "expected": 2,
        "counts": {"done": done} if done else {"failed": 2},
        "costs": {},
        "trainable_share": None,
        "reference": False,
        "verdict": "",
    }


DATA = {
    "reference": None, "compared": "method", "counts": {"done": 3, "failed": 2, "refused": 0, "stopped": 0, "queued": 1},
    "cells": [{"cell": "cells/01", "status": "failed", "message": "why"}, {"cell": "cells/02", "status": "failed", "message": "why"}],
    "rows": [row("full", "a", "glue/mrpc"), row("lora", "a", "", 0), row("full", "b", "glue/rte", 1), row("lora", "b", "glue/rte")],
}  # fmt: skip


def test_rows_of_one_benchmark_stand_together_those_without_a_result_too():
    assert [(heading, [each["name"] for each in rows]) for heading, rows in blocks(DATA)] == [
        ("glue/mrpc, a", ["full", "lora"]),
        ("glue/rte, b", ["full", "lora"]),
    ]


def test_what_is_missing_is_counted():
    assert counts(DATA) == "3 of 6 cells are done; 2 failed, 1 missing."


def test_the_summary_names_every_reason_once(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    show(DATA, tmp_path, console)
    text = console.file.getvalue()
    assert text.count("why") == 1
    assert "cells/01, cells/02 failed: why" in text
    assert "0/2" in text
    assert "1/2" in text


def test_what_was_expected_stands_below_the_tables_with_its_outcome(tmp_path):
    expected = {
        "claim": "LoRA [of rank 4] is ahead", "names": ["lora", "full"], "expected": "better", "labels": {"task": "a"},
        "benchmark": "glue/mrpc", "metric": "accuracy", "difference": 0.05, "interval": [0.01, 0.09], "p_corrected": 0.02,
        "p_equivalent": None, "margin": None, "lacks": [], "outcome": "confirmed",
    }  # fmt: skip
    few = expected | {"outcome": "undecided", "lacks": ["2 of 3 seeds"]}
    console = Console(file=io.StringIO(), width=200)
    show(DATA | {"hypotheses": [expected, few]}, tmp_path, console)
    (line,) = [each for each in console.file.getvalue().splitlines() if "confirmed" in each]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "LoRA [of rank 4] is ahead", "glue/mrpc, a", "lora less full: +0.050 (+0.010 to +0.090)", "0.020", "confirmed",
    ]  # fmt: skip
    assert "undecided: 2 of 3 seeds" in console.file.getvalue()


def test_tasks_stand_side_by_side_with_their_mean(tmp_path):
    def score(mean, verdict, apart=None):
        difference = (
            None
            if apart is None
            else {
                "value": apart,
                "interval": [apart - 0.01, apart + 0.01],
                "clear": verdict != "inside the noise",
                "p": 0.01,
            }
        )
        return {"mean": mean, "sd": 0.01, "difference": difference, "verdict": verdict, "p_corrected": None}

    lines = [
        {
            "name": "alone",
            "scores": [score(0.5, "reference"), score(0.7, "reference")],
            "mean": score(0.6, "reference"),
        },
        {
            "name": "together",
            "scores": [score(0.55, "better", 0.05), score(0.69, "inside the noise", -0.01)],
            "mean": score(0.62, "better", 0.02),
        },
        {"name": "other", "scores": [None, score(0.6, "worse", -0.1)], "mean": None},
    ]
    console = Console(file=io.StringIO(), width=200)
    show(
        {
            **DATA,
            "reference": "alone",
            "overviews": [
                {
                    "labels": {},
                    "columns": ["glue/rte", "glue/mrpc"],
                    "metrics": ["accuracy", "accuracy"],
                    "lines": lines,
                }
            ],
        },
        tmp_path,
        console,
    )
    told = {line.split("  ")[1].strip(): line.split() for line in console.file.getvalue().splitlines() if line.strip()}
    assert told["at a glance"] == ["at", "a", "glance", "glue/rte", "glue/mrpc", "mean", "against", "alone,", "95", "%"]
    assert told["together"] == words_of(
        "together 0.550 ± 0.010 (+0.050) 0.690 ± 0.010 (-0.010) 0.620 ± 0.010 +0.020 (+0.010 to +0.030)"
    )
    assert told["other"] == ["other", "0.600", "±", "0.010", "(-0.100)"]
