from __future__ import annotations

import numpy as np
import pytest

from pipelines.data.completions import IGNORED, Completions
from pipelines.tasks.causal.training import named_next, numbered, pack_completions


def completions(lengths):
    rows = [[100 * at + place for place in range(length)] for at, length in enumerate(lengths)]
    return Completions(rows, rows, list(range(len(rows))), np.asarray(lengths), np.asarray(lengths), 0, ())


def test_best_fit_by_hand():
    # by length 7 5 4 3 1 in blocks of 8: 7 | 5 | 4 | 3 joins 5 (room 3, the tightest) | 1 joins 7 (room 1)
    packs = pack_completions(completions([3, 7, 1, 5, 4]), 8)
    assert packs.members == [[1, 2], [3, 0], [4]]
    assert packs.lengths.tolist() == [8, 8, 4]


@pytest.mark.parametrize("seed", range(5))
def test_every_example_is_in_one_block_and_no_block_is_too_long(seed):
    lengths = np.random.default_rng(seed).integers(1, 65, 200).tolist()
    packs = pack_completions(completions(lengths), 64)
    assert sorted(member for each in packs.members for member in each) == list(range(200))
    assert packs.lengths.max() <= 64
    assert packs.lengths.sum() == sum(lengths)
    assert len(packs) <= sum(lengths) / 64 * 11 / 9 + 1  # the bound of best fit decreasing (Johnson et al. 1974)


def test_numbers_and_labels_by_hand():
    parts = [{"parts": [{"ids": [1, 2, 3]}, {"ids": [4, 5]}]}, {"parts": [{"ids": [6, 7]}]}]
    ids, numbers = numbered(parts, "ids", 0)
    assert ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert numbers.tolist() == [[0, 0, 0, 1, 1], [0, 0, -1, -1, -1]]
    labels = np.where(numbers < 0, IGNORED, ids)
    assert named_next(labels, numbers).tolist() == [
        [2, 3, IGNORED, 5, IGNORED],
        [7, IGNORED, IGNORED, IGNORED, IGNORED],
    ]


def test_a_choice_of_blocks():
    packs = pack_completions(completions([3, 7, 1, 5, 4]), 8)
    chosen = packs.select([2, 0])
    assert [part["index"] for part in chosen[1]["parts"]] == [1, 2]
    assert chosen.lengths.tolist() == [4, 8]
