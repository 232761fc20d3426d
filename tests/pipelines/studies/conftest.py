"""What stands in for the store and for repeated draws where runs are written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.core.recipe import Recipe
from pipelines.evaluation.resampling import ScoredLogits
from pipelines.studies import study

DRAWN: dict[tuple[bytes, ...], dict[str, np.ndarray]] = {}


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand scores of resampled examples are computed once for the same answers, which many tests write down."""
    resampled = ScoredLogits.resampled

    def once(self: ScoredLogits, draws: np.ndarray) -> dict[str, np.ndarray]:
        key = (self.logits.tobytes(), self.labels.tobytes(), draws.tobytes())
        if key not in DRAWN:
            DRAWN[key] = resampled(self, draws)
        return DRAWN[key]

    monkeypatch.setattr(ScoredLogits, "resampled", once)


@pytest.fixture
def survey(drawn_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A written-down run has no stages in the store: it is complete when its recipe is the same."""

    def complete(recipe: Recipe, folder: Path, processes: int) -> bool:
        return (folder / "manifest.json").is_file() and (folder / "recipe.yaml").read_text() == recipe.to_yaml()

    monkeypatch.setattr(study, "is_complete", complete)
