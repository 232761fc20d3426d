"""`finery chat` passes lines to the child and writes its pieces; `finery predict -` does so with rows."""

from __future__ import annotations

import io
import json
import subprocess
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
    if message == "poem":
        print(json.dumps({"piece": "TWO\\nLINES \\\\n"}), flush=True)
    for word in message.split() if message != "poem" else ():
        print(json.dumps({"piece": word.upper() + chr(27)}), flush=True)
    print(json.dumps({"end": {"tokens": 2, "turns_left_out": 0, "seed": request["seed"]}}), flush=True)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that answers in upper case."""
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    monkeypatch.setattr(chatting, "PIPELINES", (sys.executable, str(path)))


def give(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_each_line_is_answered_by_a_line_and_nothing_steers_the_terminal(echo, monkeypatch, capsys):
    give(monkeypatch, "good day\n\nlong\nbye\n")
    assert main(["chat", "m"]) == 0
    told = capsys.readouterr()
    assert told.out == "GOOD�DAY�\n\nBYE�\n"  # what was not answered has a line too
    assert told.err == "shorten it\n"


def test_line_breaks_of_an_answer_are_escaped_on_a_pipe_and_printf_reads_them_back(echo, monkeypatch, capsys):
    give(monkeypatch, "poem\na\\nb\n")
    assert main(["chat", "m"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["TWO\\nLINES \\\\n", "A\\\\NB�", ""]
    back = subprocess.run(["printf", "%b", lines[0]], capture_output=True, text=True, check=True)
    assert back.stdout == "TWO\nLINES \\n"


def test_what_windows_wrote_is_read_without_its_carriage_returns(echo, monkeypatch, capsys):
    give(monkeypatch, b"\xef\xbb\xbfgood day\r\nbye\r\n")
    assert main(["chat", "m", "--json"]) == 0
    told = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["good day", "bye"]


@pytest.mark.parametrize("command", [["chat", "m"], ["predict", "m", "-"]])
def test_what_is_no_utf_8_is_one_sentence_with_its_line(echo, monkeypatch, capsys, command):
    give(monkeypatch, b"good day\n\xff\xfe bad\n")
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "standard input is not UTF-8 text (byte 0xff in line 2); convert it, for instance with iconv\n"
    )


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
rows = [json.loads(line) for line in Path(request["data"]).read_text().split("\\n") if line]
if "wrong" in str(rows):
    print(json.dumps({"error": {"message": f"{request['data']}, row 1, is wrong", "reason": "data"}}))
    sys.exit(1)
text = "".join(json.dumps({"prediction": row}, ensure_ascii=False) + "\\n" for row in rows)
Path(request["out"]).write_text(text)
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
        ('{"a": "x\u2028y\x85z"}\r\n{"a": "\u2029"}\r\n', [], [{"a": "x\u2028y\x85z"}, {"a": "\u2029"}]),
        ("one\x0bline\x0c\r\nother\u2028one\n", [], [{"text": "one\x0bline\x0c"}, {"text": "other\u2028one"}]),
    ],
)
def test_lines_and_jsonl_are_predicted_to_standard_output(rows, monkeypatch, capsys, text, options, expected):
    give(monkeypatch, text)
    assert main(["predict", "m", "-", *options]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["prediction"] for line in told.out.split("\n") if line] == expected
    assert told.err == "look out\n"
    give(monkeypatch, text)
    assert main(["predict", "m", "-", "--json", *options]) == 0
    assert [each["prediction"] for each in json.loads(capsys.readouterr().out)["predictions"]] == expected


@pytest.mark.parametrize(
    ("text", "sentence"), [("wrong\n", "standard input, row 1, is wrong\n"), (" \n", "standard input is empty; give")]
)
def test_a_mistake_in_the_rows_is_one_in_standard_input(rows, monkeypatch, capsys, text, sentence):
    """With the exit code that the same mistake has in a file: the command is right."""
    give(monkeypatch, text)
    assert main(["predict", "m", "-"]) == 1
    assert capsys.readouterr().err.startswith(sentence)
    give(monkeypatch, text)
    assert main(["predict", "m", "-", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["exit_code"]) == ("failed", 1)


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
        (["-", "--data", "x.csv"], "leave --data and --split out"),
        (["x.csv"], "'x.csv' is no option of predict"),
        ([], "--out is missing"),
    ],
)
def test_a_wrong_command_is_one_sentence(monkeypatch, capsys, arguments, sentence):
    give(monkeypatch, "")
    assert main(["predict", "m", *arguments]) == 2
    assert sentence in capsys.readouterr().err
