"""Tests of paired differences: what the service compares runs of evals by."""

import math
import random

import pytest

from pipelines.core.paired_tests import ROUNDS, TOLERANCE, sign_test


def one_sign_at_a_time(differences: list[float], seed: int) -> float:
    """The same test as its definition reads."""
    moved = [each for each in differences if each]
    tosses, observed, as_large = random.Random(seed), abs(math.fsum(moved)), 1
    for _ in range(ROUNDS):
        bits = tosses.getrandbits(len(moved)) if moved else 0
        total = sum(-each if bits >> at & 1 else each for at, each in enumerate(moved))
        as_large += abs(total) >= observed - TOLERANCE
    return as_large / (ROUNDS + 1)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64, 203])
def test_signs_that_are_tossed_eight_at_once_give_the_p_value_of_single_tosses(count: int) -> None:
    draw = random.Random(count)
    for differences in (
        [draw.random() - 0.45 for _ in range(count)],
        [draw.choice((-1.0, 0.0, 1.0)) for _ in range(count)],
    ):
        assert sign_test(differences, 3) == one_sign_at_a_time(differences, 3)
