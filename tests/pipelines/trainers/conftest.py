"""What `run` gives to a training stage, without a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.events import EventLog, read_events
from pipelines.core.interfaces import Context, World
from tests import tiny


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., Context]:
    """`context(name="stage", …)`: a context whose folder and events lie below tmp_path; fields by keyword."""

    def build(name: str = "stage", **fields: Any) -> Context:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        given: dict[str, Any] = {
            "stage_id": "stage",
            "folder": folder,
            "fingerprint": "0" * 8,
            "seed": 7,
            "recipe": None,
            "events": EventLog(tmp_path / f"{name}.jsonl", "stage"),
            "world": World(),
            "precision": "no",
            "cache": tmp_path / "cache",
            "stage_folders": {},
            "open_model": lambda *_, **__: None,
            "open_tokenizer": tiny.tokenizer,
        }
        return Context(**{**given, **fields})

    return build


@pytest.fixture
def events() -> Callable[[Context], list[dict[str, Any]]]:
    """Every event of a context so far."""
    return lambda context: list(read_events(context.events.path))
