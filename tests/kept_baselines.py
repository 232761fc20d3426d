"""What an evaluate stage keeps of its baselines, held against the scores that it says they reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.core.files import read_json
from pipelines.evaluation.outcomes import Outcomes, read_outcomes


def kept_baselines(folder: Path) -> dict[str, list[Outcomes]]:
    """By name, each benchmark's: computed again from the files, every score is the one in `details.json`."""
    found = {path.stem: read_outcomes(path) for path in sorted((folder / "baselines").glob("*.parquet"))}
    details = read_json(folder / "details.json")
    for name, benchmarks in found.items():
        for each in benchmarks:
            again = {
                f"{metric}{suffix}": float(values[0])
                for suffix, part in each.parts.items()
                for metric, values in part.resampled(np.arange(len(part))[None]).items()  # every example once
            }
            assert again == pytest.approx(details[each.benchmark]["baselines"][name])
            assert set(each.identity) == set(details[each.benchmark]["splits"])
    return found
