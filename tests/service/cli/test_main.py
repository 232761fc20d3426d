import json
import os
import subprocess
import sys
import time

import pytest
from typer.main import get_command

from pipelines.core import recipe as recipes
from service.cli import __main__ as command
from service.cli import schema
from service.cli.__main__ import main
from service.cli.app import app

HEAVY = ("torch", "transformers", "datasets", "numpy", "peft", "pyarrow", "matplotlib")


LIGHT = [
    *(["--help"], ["--version"], ["validate", "recipe.yaml"], ["schema"], ["plan", "recipe.yaml"]),
    *(["run", "missing.yaml"], ["doctor"], ["generate", "m", "x"], ["generate", "--help"], ["attention", "--help"]),
    ["attention", "m", "x"],
]
ANSWER = """
section = {"name": "encoder", "queries": ["a"], "keys": ["a"], "maps": []}
print(json.dumps({"method": "fill_mask", "prompts": [], "html": "h", "png": "p", "notes": [], "sections": []}))
"""


def test_verbs_that_touch_no_weights_load_nothing_heavy(recipe, pretend):
    """One process answers them all, so that each is asked with what those before it had loaded."""
    code = (
        "import sys, json\nfrom service.cli import child\nfrom service.cli.__main__ import main\n"
        f"child.PIPELINES = (sys.executable, {str(pretend(ANSWER))!r})\n"
        f"for verb in {LIGHT!r}:\n"
        "    code = main(verb)\n"
        f"    print('\\nLOADED', json.dumps([verb, code, [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=recipe.parent, capture_output=True, text=True, check=True)
    told = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert told == [[verb, 2 if verb[0] == "run" else 0, []] for verb in LIGHT], done.stderr


def test_an_unknown_verb_is_a_usage_error_with_the_nearest_one(capsys):
    assert main(["valdate"]) == 2
    assert "Did you mean 'validate'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run"], ["run", "r.yaml", "--jsn"], ["init"], ["gc", "--older-than", "-1"]])
def test_wrong_usage_exits_2(arguments, capsys):
    assert main(arguments) == 2


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in ("init", "run", "resume", "validate", "plan", "schema", "doctor", "gc"))


def test_the_schema_accepts_what_validate_accepts(capsys):
    assert main(["schema"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["$schema"].startswith("https://json-schema.org/")
    assert set(described["required"]) == {"name", "model", "stages"}
    assert described["additionalProperties"] is False


def test_windows_is_refused_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(command.sys, "platform", "win32")
    assert main(["--help"]) == 1
    assert "does not run on Windows" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_causes_no_traceback(recipe, monkeypatch):
    monkeypatch.setattr(recipes, "schema", lambda: {"enum": list(range(100_000))})  # more than a pipe holds, at once
    assert len(schema.schema()) > 1 << 20
    done = subprocess.run(
        f"{sys.executable} -m service.cli schema | head -1",
        shell=True,
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


def verbs_with_json(group, words=()):
    """(words, what typer makes of it) of every verb that takes `--json`."""
    for name, verb in group.commands.items():
        if hasattr(verb, "commands"):
            yield from verbs_with_json(verb, (*words, name))
        elif any("--json" in each.opts for each in verb.params):
            yield [*words, name], verb


def required(verb, value):
    """Words for all that the verb cannot do without."""
    needed = [each for each in verb.params if each.required]
    return [
        word for each in needed for word in ([value] if each.param_type_name == "argument" else [each.opts[0], value])
    ]


VERBS = {" ".join(words): (words, verb) for words, verb in verbs_with_json(get_command(app))}


def failure_of(arguments, capsys):
    """The exit code, and the error in the one JSON object that was printed."""
    code = main(arguments)
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == {1: "failed", 2: "refused"}[code]
    assert told["exit_code"] == code
    assert {*told["error"]} == {"message", "reason", "stage"}
    return code, told["error"]


@pytest.mark.parametrize("words", ["plna", "models lst", *VERBS])
def test_wrong_words_leave_one_json_object(words, capsys):
    code, error = failure_of([*words.split(), "--no-such-option", "--json"], capsys)
    assert (code, error["reason"]) == (2, "bad_recipe")
    assert " -h' lists what it takes" in error["message"]
    if words in VERBS:
        assert "--no-such-option" in error["message"]


@pytest.mark.parametrize("words", [words for words, (_, verb) in VERBS.items() if required(verb, "x")])
def test_every_failure_leaves_one_json_object(words, tmp_path, pretend, monkeypatch, capsys):
    """What is missing, and what is nowhere: no file, no server, and a child that breaks off."""
    pretend("sys.exit('there is nothing')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name, value in {"URL": "http://127.0.0.1:9", "TOKEN": "t", "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(f"FINERY_{name}", value)
    arguments, verb = VERBS[words]
    assert failure_of([*arguments, "--json"], capsys)[1]["message"].startswith("Missing ")
    assert failure_of([*arguments, *required(verb, str(tmp_path / "nowhere" / "file")), "--json"], capsys)[1]["message"]


def test_an_error_without_a_sentence_leaves_json_and_its_trace(monkeypatch, capsys):
    monkeypatch.setattr(schema, "schema", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["schema", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["message"], error["reason"]) == ("ZeroDivisionError: division by zero", "internal")
