"""What a reward is given: a context that opens tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.interfaces import World
from tests import tiny


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., Any]:
    """`context(model=None, tokenizer=None)`: opens that model whatever is asked for, and remembers what was."""

    def made(model: Any = None, tokenizer: Any = None) -> Any:
        asked: list[Any] = []

        def open_model(head: Any, **named: Any) -> Any:
            asked.append((head.kind, named))
            return model

        def open_tokenizer(stage_id: str | None = None, checkpoint: str | None = None) -> Any:
            asked.append((stage_id, checkpoint))
            return tokenizer or tiny.tokenizer()

        return SimpleNamespace(
            world=World(),
            open_model=open_model,
            open_tokenizer=open_tokenizer,
            asked=asked,
            stage_folders={"judge": tmp_path},
        )

    return made
