"""The worst mistakes, to be read: `mistakes.jsonl`, one JSON object a line, the worst first within each split.

Keys: benchmark, split, index (row in the split), text, text_pair (null for single texts), gold, said, confidence (null where
the model tells none), badness and what it is. Of numbers every row is there by its distance; of texts those that differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluation.atomic import whole_file
from pipelines.evaluation.outcomes import Outcomes
from pipelines.evaluation.predictions import Said

MOST = 200
"""Of each split."""


def mistakes(said: Said, found: Outcomes) -> list[dict[str, Any]]:
    """The worst of a split, the worst first; of equal ones the earlier."""
    order = [int(at) for at in np.argsort(-found.badness, kind="stable") if found.wrong[at]][:MOST]
    pairs = said.rows.pairs
    return [
        {
            "benchmark": said.benchmark, "split": said.split, "index": int(said.rows.index[at]), "text": said.rows.texts[at],
            "text_pair": None if pairs is None else pairs[at], "gold": found.gold[at], "said": found.said[at],
            "confidence": None if found.confidence is None else round(float(found.confidence[at]), 6),
            "badness": round(float(found.badness[at]), 6), "by": found.order,
        }
        for at in order
    ]  # fmt: skip


def write_mistakes(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write them atomically."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
