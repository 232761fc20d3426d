"""Peak memory is what was in use at most since the last reset."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from pipelines.trainers.stage_trainer import peak_memory, reset_peak_memory

LARGE = 200 * 2**20


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or torch.cuda.is_available(), reason="measures the host's memory"
)
def test_a_peak_is_seen_after_it_is_over_and_forgotten_by_a_reset() -> None:
    reset_peak_memory()
    before = peak_memory()
    large = np.ones(LARGE, dtype=np.uint8)
    del large
    after = peak_memory()
    assert LARGE * 0.9 < after - before < LARGE * 1.5
    reset_peak_memory()
    assert peak_memory() < after - LARGE * 0.5
