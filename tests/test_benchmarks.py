"""Benchmarks are not run by the tests, but what they take from the project is there, and their page says what was kept."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = sorted((Path(__file__).resolve().parents[1] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_it_imports_from_the_project_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("pipelines", "service"):
            module = import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] in ("pipelines", "service"):
                    import_module(name.name)


@pytest.fixture
def performance(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS[0].parent))
    return import_module("performance")


def test_the_page_of_performance_says_what_was_kept(performance: ModuleType) -> None:
    kept = [performance.Measurement.from_json(line) for line in performance.KEPT.read_text().splitlines()]
    assert performance.joined([], kept) == kept
    assert performance.page(kept) == performance.PAGE.read_text()


def test_new_rows_replace_old_ones_and_a_program_that_failed_none(performance: ModuleType) -> None:
    def measurement(program: str, ours: float | None) -> Any:
        row = performance.Row("a step", "Trainer", 3.0, ours, "s", "losses", 1.5)
        found = "failed: no memory" if ours is None else [row]
        return performance.Measurement.today(program, f"python {program}.py", "a machine", found)

    old = [measurement("dpo", 2.0), measurement("ppo", None), measurement("study", 4.0)]
    new = [measurement("study", 1.0), measurement("dpo", None), measurement("ppo", None), measurement("jobs", None)]
    joined = performance.joined(old, new)
    assert [(each.program, [row.ratio for row in each.rows]) for each in joined] == [
        ("dpo", [1.5]),
        ("study", [3.0]),
        ("jobs", []),
        ("ppo", []),
    ]
    page = performance.page(joined)
    assert "| a step | Trainer | 3 s | 2 s | 1.50 | 1.5 | losses |" in page
    assert "Not measured:\n\n- `python jobs.py`: failed: no memory" in page
    assert [performance.Measurement.from_json(json.dumps(asdict(each))) for each in joined] == joined


def test_products_are_asked_again_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS[0].parent))
    products = import_module("products")
    rows, weight = torch.ones(3, 4), torch.ones(5, 4, requires_grad=True)
    batch, found = torch.ones(2, 3, 3), torch.empty(2, 3, 3)

    def work() -> None:
        torch.nn.functional.linear(rows, weight).sum().backward()
        torch.baddbmm(found, batch, batch, beta=0, alpha=0.5, out=found)

    noted = products.products_of(work)
    assert sum(noted.values()) == 3  # there, back to the weight, and the one that writes where it is told
    alone = products.products_of(lambda: products.alone(noted, rounds=1))
    assert alone == {each: 2 * times for each, times in noted.items()}
