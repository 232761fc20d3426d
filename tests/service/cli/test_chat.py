"""`finery chat` passes lines to the child and writes its pieces; `finery predict -` does so with rows."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from service.cli import chat as chatting
from service.cli import child
from service.cli.__main__ import main

ECHO = """
import json, sys
request = json.loads(sys.argv[2])
if request["model"] == "none":
    print("finery: 'none' is no model", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"ready": "m", "template": True, "family": "decoder"}), flush=True)
for line in sys.stdin:
    message = json.loads(line)["message"]
    if message == "die":
        print("finery: memory ran out", file=sys.stderr)
        sys.exit(1)
    if message == "long":
        print(json.dumps({"error": "shorten it"}), flush=True)
        continue
    for word in message.split():
        print(json.dumps({"piece": word.upper() + chr(27)}), flush=True)
    print(json.dumps({"end": {"tokens": 2, "turns_left_out": 0, "seed": request["seed"]}}), flush=True)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that answers in upper case."""
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    monkeypatch.setattr(chatting, "PIPELINES", (sys.executable, str(path)))


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_each_line_is_answered_by_a_line_and_nothing_steers_the_terminal(echo, monkeypatch, capsys):
    give(monkeypatch, "good day\n\nlong\nbye\n")
    assert main(["chat", "m"]) == 0
    told = capsys.readouterr()
    assert told.out == "GOOD�DAY�\nBYE�\n"
    assert told.err == "shorten it\n"


def test_as_json_each_answer_is_an_object(echo, monkeypatch, capsys):
    give(monkeypatch, "good day\nlong\n")
    assert main(["chat", "m", "--json", "--seed", "7"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["answer"], first["seed"]) == ("GOOD\x1bDAY\x1b", 7)
    assert second == {"message": "long", "error": "shorten it"}


@pytest.mark.parametrize(
    ("model", "text", "sentence"), [("none", "hi\n", "'none' is no model"), ("m", "die\n", "memory ran out")]
)
def test_a_child_that_ends_says_why(echo, monkeypatch, capsys, model, text, sentence):
    give(monkeypatch, text)
    assert main(["chat", model]) == 1
    assert capsys.readouterr().err == f"{sentence}\n"


ROWS = """
import json, sys
from pathlib import Path
request = json.loads(sys.argv[2])
rows = [json.loads(line) for line in Path(request["data"]).read_text().splitlines()]
Path(request["out"]).write_text("".join(json.dumps({"prediction": row}) + "\\n" for row in rows))
print(json.dumps({"file": request["out"], "rows": len(rows), "warnings": ["look out"], "text": request["text"], "counts": {}}))
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that predicts each row to be itself."""
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    monkeypatch.setattr(child, "PIPELINES", (sys.executable, str(path)))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("good day\n\nbad\n", [], [{"text": "good day"}, {"text": "bad"}]),
        ("good day\n", ["--text", "sentence"], [{"sentence": "good day"}]),
        ('{"a": "x", "b": "y"}\n', [], [{"a": "x", "b": "y"}]),
        ('"quoted"\n', [], [{"text": '"quoted"'}]),
    ],
)
def test_lines_and_jsonl_are_predicted_to_standard_output(rows, monkeypatch, capsys, text, options, expected):
    give(monkeypatch, text)
    assert main(["predict", "m", "-", *options]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["prediction"] for line in told.out.splitlines()] == expected
    assert told.err == "look out\n"


def test_as_json_the_predictions_stand_in_one_object_and_out_is_a_file(rows, monkeypatch, capsys, tmp_path):
    give(monkeypatch, "good\n")
    assert main(["predict", "m", "-", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["predictions"] == [{"prediction": {"text": "good"}}]
    assert told["text"] == ["text"]
    give(monkeypatch, "good\n")
    assert main(["predict", "m", "-", "--out", str(tmp_path / "out.jsonl")]) == 0
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"prediction": {"text": "good"}}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-"], "standard input is empty"),
        (["-", "--data", "x.csv"], "leave --data and --split out"),
        (["x.csv"], "'x.csv' is no option of predict"),
        ([], "--out is missing"),
    ],
)
def test_a_wrong_command_is_one_sentence(monkeypatch, capsys, arguments, sentence):
    give(monkeypatch, "")
    assert main(["predict", "m", *arguments]) == 2
    assert sentence in capsys.readouterr().err
