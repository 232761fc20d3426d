"""The order of examples is a permutation that depends on (seed, epoch) alone and keeps similar lengths together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.trainers.trainer import EpochSampler, order


@given(st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(1, 400), st.integers(1, 64), st.booleans())
def test_every_epoch_is_a_permutation_and_is_drawn_again_equal(
    seed: int, epoch: int, examples: int, batch: int, with_lengths: bool
) -> None:
    lengths = np.random.default_rng(seed).integers(1, 99, examples) if with_lengths else None
    first = order(seed, epoch, examples, batch, lengths)
    assert sorted(first.tolist()) == list(range(examples))
    assert first.tolist() == order(seed, epoch, examples, batch, lengths).tolist()


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(order(seed, epoch, 100, 8).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_batches_hold_similar_lengths_and_come_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 128, 6400)
    chosen = lengths[order(1, 0, 6400, 32, lengths)].reshape(-1, 32)
    padded = chosen.max(axis=1).sum() * 32
    assert lengths.sum() / padded > 0.95
    random = lengths[order(1, 0, 6400, 32)].reshape(-1, 32)
    assert lengths.sum() / (random.max(axis=1).sum() * 32) < 0.6
    means = chosen.mean(axis=1)
    assert np.corrcoef(means[:-1], means[1:])[0, 1] < 0.3


def test_a_draw_names_one_example_in_one_epoch() -> None:
    sampler = EpochSampler(10, 4, seed=3)
    first = list(sampler)
    sampler.epoch = 2
    third = list(sampler)
    assert sorted(first) == list(range(10))
    assert sorted(third) == list(range(20, 30))
    assert len(sampler) == 10


def test_processes_that_share_an_epoch_get_equally_many_examples_the_last_ones_marked() -> None:
    sampler = EpochSampler(45, 8, seed=3, shared=8)
    sampler.epoch = 1
    draws = list(sampler)
    assert len(sampler) == len(draws) == 48
    assert sorted(draws[:45]) == list(range(45, 90))
    assert draws[45:] == [-1, -1, -1]
    assert list(EpochSampler(45, 8, seed=3, shared=8))[:45] == list(EpochSampler(45, 8, seed=3))
