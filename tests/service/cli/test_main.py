import json
import os
import subprocess
import sys

import pytest

from service.cli import __main__ as command
from service.cli.__main__ import main

HEAVY = ("torch", "transformers", "datasets", "numpy", "peft", "pyarrow")


def loaded_after(arguments, cwd):
    """Names in HEAVY that are loaded once the command has answered, and its exit code."""
    code = (
        "import sys, json\nfrom service.cli.__main__ import main\ncode = main(sys.argv[1:])\n"
        f"print('LOADED', json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.rpartition("LOADED")[2])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["validate", "recipe.yaml"],
        ["schema"],
        ["plan", "recipe.yaml"],
        ["run", "missing.yaml"],
        ["doctor"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_verbs_that_touch_no_weights_load_nothing_heavy(recipe, arguments):
    code, heavy = loaded_after(arguments, recipe.parent)
    assert heavy == []
    assert code == {"run": 2}.get(arguments[0], 0)


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


def test_a_reader_that_has_seen_enough_causes_no_traceback(recipe):
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
