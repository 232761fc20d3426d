"""Warnings: each sign is told once, when it shows and not before."""

from __future__ import annotations

import json

import pytest

from pipelines.trainers.ppo_diagnostics import WINDOW, Watch

HEALTHY = {
    "reward": 0.1,
    "kl": 0.2,
    "response_length": 20.0,
    "entropy": 4.0,
    "ended": 0.8,
    "distinct": 1.0,
    "advantage_std": 0.3,
}


def told(watch: Watch, completions: int = 16, times: int = WINDOW, **changed: float) -> list[str]:
    return [sentence for _ in range(times) for sentence in watch.look(HEALTHY | changed, completions)]


def test_a_healthy_run_is_told_nothing():
    watch = Watch()
    assert told(watch, times=30) == []
    assert told(watch, reward=0.9, kl=3.0, entropy=2.0, response_length=26.0, times=30) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reward": 0.9, "kl": 30.0}, "exploiting the reward"),
        ({"reward": 0.9, "response_length": 50.0}, "reward length"),
        ({"reward": 0.9, "response_length": 4.0}, "reward brevity"),
        ({"entropy": 0.1}, "hardly chooses"),
        ({"distinct": 0.1}, "says the same to every prompt"),
        ({"ended": 0.0}, "no longer come to an end"),
        ({"advantage_std": 0.0}, "nothing to learn from"),
    ],
)
def test_every_sign_is_told_once(changed: dict[str, float], said: str):
    watch = Watch()
    assert told(watch) == []
    found = told(watch, times=20, **changed)
    assert len(found) == 1
    assert said in found[0]


def test_what_does_not_raise_the_reward_hacks_nothing():
    watch = Watch()
    told(watch)
    assert told(watch, times=20, reward=0.05, kl=30.0, response_length=60.0) == []


def test_a_few_completions_may_be_the_same():
    watch = Watch()
    told(watch, completions=4)
    assert told(watch, completions=4, times=10, distinct=0.1) == []


def test_it_goes_on_where_a_checkpoint_left_it():
    whole, parts = Watch(), Watch()
    sentences: dict[str, list[str]] = {"whole": [], "parts": []}
    for step in range(20):
        seen = {"entropy": 4.0 - 0.25 * min(step, 15), "reward": 0.1 + 0.05 * step, "kl": 1.5 * step}
        sentences["whole"] += told(whole, times=1, **seen)
        other = Watch()
        other.restore(json.loads(json.dumps(parts.state())))
        parts = other
        sentences["parts"] += told(parts, times=1, **seen)
    assert sentences["whole"] == sentences["parts"]
    assert len(sentences["whole"]) >= 2
