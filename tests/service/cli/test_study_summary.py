import io

from rich.console import Console

from service.cli.study_summary import blocks, counts, show


def row(name, task, benchmark, done=2):
    figure = {"mean": 0.8, "sd": None, "values": [0.8], "interval": None, "difference": None}
    return {
        "name": name, "labels": {"task": task, "method": name}, "benchmark": benchmark, "metric": "accuracy" if benchmark else None,
        "metrics": {"accuracy": figure} if benchmark else {}, "expected": 2, "counts": {"done": done} if done else {"failed": 2}, "costs": {},
        "trainable_share": None, "reference": False, "verdict": "",
    }  # fmt: skip


DATA = {
    "reference": None, "compared": "method", "counts": {"done": 3, "failed": 2, "refused": 0, "stopped": 0, "queued": 1},
    "cells": [{"cell": "cells/01", "status": "failed", "message": "why"}, {"cell": "cells/02", "status": "failed", "message": "why"}],
    "rows": [row("full", "a", "glue/mrpc"), row("lora", "a", "", 0), row("full", "b", "glue/rte", 1), row("lora", "b", "glue/rte")],
}  # fmt: skip


def test_rows_of_one_benchmark_stand_together_those_without_a_result_too():
    assert [(heading, [each["name"] for each in rows]) for heading, rows in blocks(DATA)] == [
        ("glue/mrpc, a", ["full", "lora"]), ("glue/rte, b", ["full", "lora"]),
    ]  # fmt: skip


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
