"""`finery score` picks the rules by the benchmark's name, and needs no model library for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pipelines.commands.score import answer
from pipelines.core.errors import CommandError

HEAVY = ("torch", "transformers", "datasets", "evaluate", "sklearn", "scipy", "pandas")


def test_scoring_imports_no_model_library(tmp_path):
    (tmp_path / "r.json").write_text('{"data": [{"paragraphs": [{"qas": [{"id": "a", "answers": [{"text": "x"}]}]}]}]}')
    (tmp_path / "p.json").write_text('{"a": "X."}')
    request = {"benchmark": "squad", "predictions": str(tmp_path / "p.json"), "references": str(tmp_path / "r.json")}
    code = (
        f"import sys\nfrom pipelines.__main__ import main\nassert main(['score', {json.dumps(request)!r}]) == "
        f"0\nprint([name for name in {HEAVY} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(said[0]) == {"scores": {"exact_match": 100.0, "f1": 100.0, "total": 1}, "notes": []}
    assert said[1] == "[]"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"benchmark": "sqaud"}, "unknown benchmark 'sqaud'. Did you mean 'squad'?"),
        ({"benchmark": "squad", "na_prob_file": "n"}, "--na-prob-file is for squad_v2"),
        ({"benchmark": "squad_v2", "missing": "zero"}, "--missing zero is what the official script of squad does"),
        ({"benchmark": "race"}, "p.json cannot be read|r.parquet is no file"),
        ({"benchmark": "squad_v2", "na_prob_thresh": float("nan")}, "must be a finite number"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(tmp_path, changed, sentence):
    request = {"benchmark": "squad", "predictions": str(tmp_path / "p.json"), "references": str(tmp_path / "r.parquet")}
    with pytest.raises(CommandError, match=sentence):
        answer(request | changed)
