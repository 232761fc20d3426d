"""Shares of tasks, by the papers' arithmetic done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.trainers.multi_task import Sampling, annealed, apportioned

SIZES, IDS = (8, 1, 1), ("a", "b", "c")


def weights(epoch: int = 0, epochs: int = 1, **words: object) -> list[float]:
    return Sampling.model_validate(words).weights(SIZES, IDS, epoch, epochs)


def test_proportional_follows_the_sizes():
    assert weights() == pytest.approx([0.8, 0.1, 0.1])


def test_uniform_does_not():
    assert weights(name="uniform") == pytest.approx([1 / 3] * 3)


def test_temperature_takes_a_root():
    # 8^(1/3) = 2, 1^(1/3) = 1: 2 / 4, 1 / 4, 1 / 4
    assert weights(name="temperature", temperature=3.0) == pytest.approx([0.5, 0.25, 0.25])
    assert weights(name="temperature", temperature=1.0) == pytest.approx([0.8, 0.1, 0.1])


def test_annealing_begins_proportional_and_ends_at_a_fifth_power():
    assert weights(0, 5, name="annealed") == pytest.approx([0.8, 0.1, 0.1])
    last = 8**0.2
    assert weights(4, 5, name="annealed") == pytest.approx([last / (last + 2), 1 / (last + 2), 1 / (last + 2)])
    # Stickland and Murray: alpha = 1 - 0.8 (e - 1) / (E - 1), their e counts from 1
    assert [annealed(epoch, 5) for epoch in range(5)] == pytest.approx([1 - 0.8 * (e - 1) / 4 for e in range(1, 6)])
    assert annealed(0, 1) == 1.0


def test_explicit_shares_are_ratios():
    assert weights(name="explicit", shares={"a": 1.0, "b": 1.0, "c": 2.0}) == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize(
    ("words", "place", "sentence"),
    [
        ({"name": "temperature"}, ("temperature",), "is missing, which temperature sampling needs"),
        (
            {"name": "uniform", "temperature": 2.0},
            ("temperature",),
            "belongs to temperature sampling, and this is uniform; leave it out",
        ),
        ({"name": "explicit"}, ("shares",), "is missing, which explicit sampling needs"),
        ({"shares": {"a": 1.0}}, ("shares",), "belongs to explicit sampling, and this is proportional; leave it out"),
    ],
)
def test_settings_belong_to_their_rule(words: dict[str, object], place: tuple[str, ...], sentence: str):
    with pytest.raises(ValidationError) as caught:
        Sampling.model_validate(words)
    assert dict(flatten(caught.value)) == {place: sentence}


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_whole_numbers_add_up_and_are_never_off_by_one(total: int, raw: list[float]):
    shares = [each / sum(raw) for each in raw]
    counts = apportioned(total, shares)
    assert sum(counts) == total
    assert all(abs(count - total * share) < 1 for count, share in zip(counts, shares, strict=True))
