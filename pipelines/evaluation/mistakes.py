"""The worst mistakes of a split: `mistakes.jsonl`.

It holds one JSON object a line, the worst first within each split. Keys: benchmark, split, index (row in the split),
text, text_pair (null for single texts), gold, said, confidence (null where the model tells none), badness and what it
is. Of numbers every row is there by its distance; of texts those that differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pipelines.core.files import whole_file
from pipelines.tasks.predictions import SplitPredictions
from pipelines.tasks.scored_examples import ScoredExamples

MOST = 200
"""Of each split."""


def mistakes(predictions: SplitPredictions, examples: ScoredExamples) -> list[dict[str, object]]:
    """The worst of a split, the worst first; of equal ones the earlier."""
    order = [int(at) for at in np.argsort(-examples.badness, kind="stable") if examples.wrong[at]][:MOST]
    pairs = predictions.rows.pairs
    return [
        {
            "benchmark": predictions.benchmark,
            "split": predictions.split,
            "index": int(predictions.rows.index[at]),
            "text": predictions.rows.texts[at],
            "text_pair": None if pairs is None else pairs[at],
            "gold": examples.gold[at],
            "said": examples.answers[at],
            "confidence": None if examples.confidence is None else round(float(examples.confidence[at]), 6),
            "badness": round(float(examples.badness[at]), 6),
            "by": examples.order,
        }
        for at in order
    ]


def write_mistakes(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Write them atomically."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
