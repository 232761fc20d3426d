"""Whatever a publication says of its scores in several places is found to be the same, for every kind of score."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.interfaces import Head
from pipelines.core.results import MARKER
from pipelines.publishing.destinations.destination import marker_bytes, write_sums
from pipelines.publishing.hub_metadata import EVAL_RESULTS, evaluation_results
from pipelines.publishing.integrity import problems
from pipelines.publishing.provenance import stated
from tests.pipelines.publishing.test_card import RECIPE, scores, write

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "undefined": ({"glue/cola": {"matthews_correlation": math.nan, "accuracy": 0.5}}, {}, "sequence_classification"),
    "two splits": (
        {"glue/mnli": {"accuracy": 0.5, "accuracy_mm": 1 / 3}},
        {"glue/mnli": {"splits": {"": "validation_matched", "_mm": "validation_mismatched"}, "examples": {"a": 9}}},
        "sequence_classification",
    ),
    "percent": ({"multi30k/en-de": {"bleu": 35.123}}, {"multi30k/en-de": {"percent": ["bleu"]}}, "seq2seq_lm"),
    "few-shot": (
        {"glue/cola/5-shot": {"accuracy": 2 / 3}, "glue/cola/0-shot": {"accuracy": 0.1}},
        {"glue/cola/5-shot": {"intervals": {"accuracy": [0.1, 0.9]}}},
        "causal_lm",
    ),
    "text": ({"builtin/python-docs": {"bits_per_byte": 2.5, "perplexity": 12345.6}}, {}, "causal_lm"),
    "completions": ({"policy": {"reward": -0.5, "kl": 1e-7}}, {"policy": {"policy": {"x": 1}}}, "causal_lm"),
    "nothing": ({}, {}, "masked_lm"),
}


def publication(folder: Path, metrics: dict[str, Any], details: dict[str, Any], head: str) -> None:
    """The files of a publication that say its scores."""
    scored = scores(metrics, details)
    model = {"stage": "mrpc", "publish": "publish"}
    manifest = {"name": "tiny", "model": model, "scores": [stated(each) for each in scored.values()], "sources": []}
    labels = ("no", "yes") if head == "sequence_classification" else ()
    (folder / "README.md").write_text(write(folder, scored=scored, head=Head(head, labels)))  # type: ignore[arg-type]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "stages": [], "versions": {}}))
    (folder / "recipe.yaml").write_text(re.sub("stage: (pretrain|evaluate|publish),", r"stage: \\1, id: \\1,", RECIPE))
    if text := evaluation_results(scored, "2026-01-02T03:04:05Z"):
        (folder / EVAL_RESULTS).parent.mkdir()
        (folder / EVAL_RESULTS).write_text(text)
    sums = write_sums(folder)
    (folder / MARKER).write_bytes(marker_bytes({"contents": 3, "checksums": sums}, complete=True))


@pytest.mark.parametrize("case", CASES)
def test_what_finery_writes_says_the_same_everywhere(tmp_path, case):
    publication(tmp_path, *CASES[case])
    assert problems(tmp_path) == []
