"""The fixtures of the room, and the little that training word vectors needs of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.signals import StopSignal
from tests.classifiers import classifier, evaluation_context, sentences, tokenizer

__all__ = ["classifier", "evaluation_context", "sentences", "tokenizer"]

SIDES = {"king": "royal male", "queen": "royal female", "man": "common male", "woman": "common female"}
COMPANY = {
    "royal": ["crown", "throne", "palace", "castle"],
    "common": ["field", "plough", "market", "cottage"],
    "male": ["he", "his", "beard", "brother"],
    "female": ["she", "her", "dress", "sister"],
}


@pytest.fixture
def running(tmp_path: Path, tokenizer: Any) -> Any:
    """A context as far as features read one; `running.told` has the progress that was reported."""
    told: list[dict[str, Any]] = []
    events = SimpleNamespace(emit=lambda kind, **fields: told.append({"event": kind, **fields}))
    return SimpleNamespace(
        cache=tmp_path,
        seed=1,
        events=events,
        told=told,
        beat=lambda: None,
        stop=StopSignal(),
        open_tokenizer=lambda stage_id=None: tokenizer,
        stage_folders={},
    )


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up language: each person keeps the company of a rank and of a sex, drawn evenly."""
    import random

    draw = random.Random(3)
    lines = []
    for _ in range(3000):
        person = draw.choice(list(SIDES))
        company = [draw.choice(COMPANY[side]) for side in SIDES[person].split() for _ in range(2)]
        draw.shuffle(company)
        lines.append(" ".join([*company[:2], person, *company[2:]]))
    path = tmp_path_factory.mktemp("court") / "court.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def analogy(table: Any, first: str, minus: str, plus: str) -> str:
    """The person nearest to first - minus + plus, by cosine."""
    import numpy as np

    rows = {word: row / np.linalg.norm(row) for word, row in zip(table.words, table.matrix, strict=True)}
    wanted = rows[first] - rows[minus] + rows[plus]
    others = [word for word in SIDES if word not in (first, minus, plus)]
    others += [word for words in COMPANY.values() for word in words]
    return max(others, key=lambda word: float(rows[word] @ wanted))
