"""`publication.json`: the last file of a publication. Without it, or with `complete: false`, nothing was published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.publishing.checksums import MARKER

FORMAT = "finery publication 1"


def to_bytes(publication: Mapping[str, Any], complete: bool) -> bytes:
    """The marker's content."""
    record = {"format": FORMAT, **publication, "complete": complete}
    return (json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def from_bytes(content: bytes) -> dict[str, Any] | None:
    """The marker's fields, or None when this is not one of ours."""
    try:
        record = json.loads(content)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT or not isinstance(record.get("checksums"), dict):
        return None
    return record


__all__ = ["FORMAT", "MARKER", "from_bytes", "to_bytes"]
