"""From the run folder's `events.jsonl` to the store: whole lines, in batches, each exactly once.

The store keeps how far the file was read, in the same transaction as the events, and drops those whose ids it has. A
service that was killed between two batches therefore goes on where the store says, and a file that became shorter
(its last line was torn by a crash and cut off) is read again from the start at no harm.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

BATCH_BYTES = 1 << 18
"""Read at once: some 2,000 events, one transaction."""
LONGEST_LINE = 1 << 24


def read_batch(path: Path, offset: int, size: int = BATCH_BYTES) -> tuple[list[dict[str, Any]], int]:
    """The whole lines after `offset`, at least one when there is one, and the offset after them.

    A line that is no event is passed over. Nothing new: `([], offset)`.
    """
    try:
        length = os.stat(path).st_size
        if length == offset:
            return [], offset
        if length < offset:
            offset = 0
        with open(path, "rb") as file:
            file.seek(offset)
            text = file.read(size)
            while b"\n" not in text and len(text) < LONGEST_LINE and (more := file.read(size)):
                text += more
    except FileNotFoundError:
        return [], offset
    whole = text[: text.rfind(b"\n") + 1]
    return [event for line in whole.splitlines() if (event := _event(line)) is not None], offset + len(whole)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("id"), int) and isinstance(event.get("event"), str) else None


def is_score(metrics: Any) -> bool:
    """Whether a stage's metrics are benchmarks' scores, `{"glue/mrpc": {"f1": …}}`, and not a training's numbers."""
    return isinstance(metrics, dict) and bool(metrics) and all(isinstance(values, dict) for values in metrics.values())
