"""How a run of PPO is shown: its signs in the order of the iterations, a running mean, the first and the last samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.reports.run_plots import figures, running_mean, samples, signals


@pytest.fixture
def run(tmp_path: Path) -> Path:
    events = []
    for step in range(1, 61):
        metrics = {"reward": step / 60, "kl": step * 0.1, "kl_coef": 0.05, "loss": 0.1, "ended": 1.0, "distinct": 0.5}
        events.append({"event": "metric", "stage": "ppo", "step": step, "metrics": metrics})
        events.append(
            {
                "event": "sample",
                "stage": "ppo",
                "step": step,
                "completions": [{"prompt": "<b>", "completion": "x", "reward": 1, "kl": 0}],
            }
        )
    events.append({"event": "metric", "stage": "other", "step": 1, "metrics": {"reward": 9.0}})
    events.append({"event": "metric", "stage": "ppo", "step": 60, "metrics": {"reward": 2.0}})  # done again
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps({"id": number + 1, "time": "", **event}) + "\n" for number, event in enumerate(events))
    )
    return tmp_path


def test_signs_are_read_in_order(run: Path):
    found = signals(run, "ppo")
    assert found["reward"][0] == (1, pytest.approx(1 / 60))
    assert found["reward"][-1] == (60, 2.0)
    assert "loss" not in found
    assert signals(run, "nothing") == {}


def test_every_sign_has_its_plot_but_those_that_never_change(run: Path):
    drawn = figures("ppo", signals(run, "ppo"))
    text = " ".join(each["plot"] for each in drawn)
    assert "KL to the reference" in text
    assert "kl_coef" not in text
    assert "reward, mean of 3" in text
    assert all(each["plot"].startswith("<svg") for each in drawn)
    changing = signals(run, "ppo") | {"kl_coef": [(1.0, 0.1), (2.0, 0.2)]}
    assert "kl_coef" in " ".join(each["plot"] for each in figures("ppo", changing))


def test_the_first_and_the_last_samples_are_shown(run: Path):
    assert [each["step"] for each in samples(run, "ppo")] == [1, 60]
    assert samples(run, "other") == []


def test_a_running_mean_by_hand():
    assert running_mean([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]
