"""The order of several tasks' examples: whole parts of one task, every example as often as it should be, the same after a stop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.trainers.multi_task import Sampling
from pipelines.trainers.multi_task_sampling import MixtureSampler, TaskMixture, tasks_left


class Rows(list[dict[str, Any]]):
    """Examples that know their lengths."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([example["length"] for example in self])


def rows(count: int) -> Rows:
    return Rows({"row": row, "length": 3 + row % 5} for row in range(count))


def mixture(*sizes: int, marked: bool = True) -> TaskMixture:
    return TaskMixture([rows(size) for size in sizes], [marked] * len(sizes))


def sampler(
    whole: TaskMixture, part: int = 4, tasks_per_step: int = 1, epochs: int = 3, seed: int = 1, **words: Any
) -> MixtureSampler:
    most = words.pop("most", None)
    ids = [f"t{position}" for position in range(len(whole.parts))]
    return MixtureSampler(
        whole,
        ids,
        Sampling.model_validate(words),
        part=part,
        tasks_per_step=tasks_per_step,
        seed=seed,
        epochs=epochs,
        most=most,
    )


def epoch_of(found: MixtureSampler, epoch: int) -> list[dict[str, Any]]:
    found.epoch = epoch
    return [found.mixture[draw] for draw in found]


def parts_of(found: MixtureSampler, epoch: int) -> list[list[dict[str, Any]]]:
    examples = epoch_of(found, epoch)
    return [examples[start : start + found.part] for start in range(0, len(examples), found.part)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 23), min_size=2, max_size=4), st.integers(1, 5), st.integers(0, 2), st.integers(1, 2))
def test_every_part_is_of_one_task_and_steps_are_whole(sizes: list[int], part: int, epoch: int, per_step: int):
    found = sampler(mixture(*sizes), part=part, tasks_per_step=per_step)
    parts = parts_of(found, epoch)
    assert len(parts) % per_step == 0
    assert sum(map(len, parts)) == len(found)
    for each in parts:
        assert len({example["task"] for example in each}) == 1


def test_an_epoch_of_proportional_sampling_is_everything_once():
    found = sampler(mixture(8, 4, 12))
    seen = Counter((example["task"], example["row"]) for example in epoch_of(found, 0))
    assert seen == Counter({(task, row): 1 for task, size in enumerate((8, 4, 12)) for row in range(size)})


def test_streams_go_on_where_the_epoch_before_stopped():
    """Uniform sampling of unequal tasks: the large one is not finished in an epoch, and no example comes twice before all came once."""
    found = sampler(mixture(40, 4), name="uniform", epochs=4)
    large = [example["row"] for epoch in range(2) for example in epoch_of(found, epoch) if example["task"] == 0]
    assert len(large) == 48
    assert len(set(large[:40])) == 40
    assert set(Counter(example["row"] for example in epoch_of(found, 0) if example["task"] == 1).values()) == {5}


def test_draws_tell_visits_apart():
    found = sampler(mixture(8, 2), name="uniform", epochs=6)
    draws = [example["draw"] for epoch in range(6) for example in epoch_of(found, epoch) if not example.get("padding")]
    assert len(draws) == len(set(draws))


def test_what_fills_a_part_is_marked_and_of_its_task():
    found = sampler(mixture(5, 8))
    filling = [example for example in epoch_of(found, 0) if example.get("padding")]
    assert len(filling) == 3
    assert {example["task"] for example in filling} == {0}


def test_the_order_is_a_function_of_seed_and_epoch():
    one, other, third = (sampler(mixture(9, 6), seed=seed) for seed in (1, 1, 2))
    assert epoch_of(one, 2) == epoch_of(other, 2)
    assert epoch_of(one, 2) != epoch_of(one, 1)
    assert epoch_of(one, 2) != epoch_of(third, 2)


def test_a_step_holds_different_tasks():
    found = sampler(mixture(8, 8, 8, 8), part=2, tasks_per_step=3, name="uniform")
    parts = parts_of(found, 1)
    for start in range(0, len(parts), 3):
        assert len({each[0]["task"] for each in parts[start : start + 3]}) == 3


def test_a_limit_changes_shares_and_not_what_is_seen_in_time():
    found = sampler(mixture(40, 4), most=4, epochs=40)
    assert found.counts(0) == [1, 1]
    seen = {example["row"] for epoch in range(10) for example in epoch_of(found, epoch) if example["task"] == 0}
    assert seen == set(range(40))


def test_a_task_that_left_is_not_seen_again():
    found = sampler(mixture(8, 8))
    found.left = {"t0": 1}
    assert {example["task"] for example in epoch_of(found, 0)} == {0, 1}
    assert {example["task"] for example in epoch_of(found, 1)} == {1}
    assert len(epoch_of(found, 1)) == len(found)


def test_examples_of_tasks_without_draws_have_none():
    whole = TaskMixture([rows(3), rows(3)], [False, True])
    assert "draw" not in whole[1]
    assert whole[4]["draw"] == 4
    assert whole[6 + 4]["row"] == 1  # a second visit


@pytest.mark.parametrize(
    ("values", "patience", "left"),
    [
        ([0.1, 0.2, 0.3], 1, False),
        ([0.3, 0.2], 1, True),
        ([0.3, 0.3], 1, True),
        ([0.3, 0.2, 0.1], 3, False),
        ([], 1, False),
        ([0.1, 0.3, 0.2, 0.25], 2, True),
    ],
)
def test_patience_counts_evaluations_since_the_best(values: list[float], patience: int, left: bool):
    assert tasks_left({"t": values}, patience) == (["t"] if left else [])


def test_lengths_are_asked_of_each_task():
    whole = mixture(60, 60)
    by_length = parts_of(sampler(whole), 0)
    plain = MixtureSampler(whole, ["a", "b"], Sampling(), part=4, tasks_per_step=1, seed=1, epochs=1, by_length=False)

    def spread(parts: list[list[dict[str, Any]]]) -> float:
        return float(
            np.mean(
                [
                    max(example["length"] for example in each) - min(example["length"] for example in each)
                    for each in parts
                ]
            )
        )

    assert spread(by_length) < 0.5 * spread(parts_of(plain, 0))
