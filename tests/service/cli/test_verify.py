"""`finery verify` and `finery reproduce` show what holds, and exit with 1 where something does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.cli import verify
from service.cli.__main__ import main
from service.cli.child import ChildAnswer
from service.cli.verify import show_reproduced, show_verified

SCORE = {
    "benchmark": "glue/mrpc",
    "metric": "f1",
    "stated": 0.81,
    "measured": 0.81,
    "low": 0.81,
    "high": 0.81,
    "holds": True,
}
VERIFIED: dict[str, Any] = {
    "folder": "registry/x",
    "verified": True,
    "signed": False,
    "files": 16,
    "problems": [],
    "scores": [SCORE],
    "notes": ["checksums without a signature prove integrity, not origin"],
    "differences": [],
}
REPRODUCED: dict[str, Any] = {
    "folder": "registry/x",
    "reproduced": True,
    "place": "runs/reproduce-x",
    "scores": [SCORE],
    "same_weights": True,
    "differences": ["torch is 2.14, there it was 2.13"],
    "problems": [],
    "notes": ["nothing was reported to wandb: no score depends on it"],
}


def test_what_holds_is_shown_with_what_it_stands_on(capsys):
    show_verified(VERIFIED)
    out = capsys.readouterr().out
    assert "the same" in out
    assert "16 files are as published; 1 score came out again" in out
    assert "prove integrity, not origin." in out


def test_that_nothing_was_scored_is_said(capsys):
    show_verified(VERIFIED | {"scores": []})
    assert "it did not score" in capsys.readouterr().out


def test_what_does_not_hold_is_one_sentence_each_on_standard_error(capsys):
    wrong = SCORE | {"measured": 0.5, "low": 0.8, "high": 0.82, "holds": False}
    show_verified(VERIFIED | {"verified": False, "scores": [wrong], "problems": ["'x' is missing", "f1 is off"]})
    told = capsys.readouterr()
    assert "0.8000 – 0.8200" in told.out
    assert "differs" in told.out
    assert told.err.splitlines() == ["  'x' is missing", "  f1 is off", "  Not as published: registry/x"]


def test_a_reproduction_says_where_it_lies_and_what_differs(capsys):
    show_reproduced(REPRODUCED)
    out = capsys.readouterr().out
    assert "Scores may differ a little here: torch is 2.14, there it was 2.13." in out
    assert "The weights are the same, byte for byte." in out
    assert "Note: nothing was reported to wandb: no score depends on it." in out
    assert "the run lies in runs/reproduce-x" in out


@pytest.mark.parametrize(
    ("verb", "key", "data"), [("verify", "verified", VERIFIED), ("reproduce", "reproduced", REPRODUCED)]
)
@pytest.mark.parametrize("holds", [True, False])
def test_the_exit_code_and_the_json_say_whether_it_holds(monkeypatch, capsys, verb, key, data, holds):
    asked = []
    monkeypatch.setattr(
        verify, "ask", lambda *request: asked.append(request[:2]) or ChildAnswer(0, data | {key: holds})
    )
    assert main([verb, "registry/x", "--data", "in", "--json"]) == (0 if holds else 1)
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_code"], told[key]) == (0 if holds else 1, holds)
    ((name, request),) = asked
    assert (name, request["folder"], request["data"]) == (verb, "registry/x", "in")
