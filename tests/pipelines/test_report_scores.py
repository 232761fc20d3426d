from __future__ import annotations

from pipelines.reports import run_page

ABOUT = {
    "histogram": {"test": {"edges": [0.0, 1.0], "chosen": [3], "rejected": [3]}},
    "paired": {"test": {"longer": {"difference": -0.05, "interval": [-0.1, 0.01]}}},
}


def test_the_gain_over_a_guesser_is_told_with_its_interval():
    found = run_page.of_report_scores(ABOUT, "test")
    assert found["plot"].startswith("<svg")
    assert "-0.050 over longer (95 % -0.100 to +0.010)" in found["told"]


def test_other_benchmarks_have_none():
    assert run_page.of_report_scores({"calibration": {"test": {}}}, "test") is None
    assert run_page.of_report_scores(ABOUT, "train") is None
