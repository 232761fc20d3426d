import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from pipelines.core.errors import CommandError
from service.cli import child
from service.cli.child import Answer, ask, refuse

WAITS = """
Path("ready").touch()
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(75))
time.sleep(20)
"""


def test_the_child_is_asked_with_one_json_object_and_its_answer_is_the_last_line(recipe, pretend):
    pretend("print('noise of a library'); print(json.dumps({'verb': VERB, 'asked': json.loads(TARGET)}))")
    assert ask("attention", {"text": 'ä " -x'}, "", True) == Answer(
        0, {"verb": "attention", "asked": {"text": 'ä " -x'}}
    )


def test_what_a_library_prints_on_stderr_is_not_taken_for_the_answer(recipe, pretend):
    pretend("print(json.dumps({'a': 1})); print('{\"b\": 2}', file=sys.stderr)")
    assert ask("attention", {}, "", True).data == {"a": 1}


@pytest.mark.parametrize(("code", "status"), [(1, "failed"), (2, "refused"), (75, "stopped")])
def test_a_sentence_of_the_child_is_passed_on_with_its_code(recipe, pretend, capsys, code, status):
    pretend(
        f"print(json.dumps({{'error': {{'message': 'no such thing', 'reason': 'model_error'}}}})); sys.exit({code})"
    )
    found = ask("generate", {}, "", True)
    assert found == Answer(code, error="no such thing", reason="model_error")
    assert refuse(found, as_json=True) == code
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "status": status,
        "exit_code": code,
        "error": {"message": "no such thing", "reason": "model_error", "stage": None},
    }
    assert err == "no such thing\n"
    assert refuse(found, as_json=False) == code
    assert capsys.readouterr() == ("", "no such thing\n")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('finery: broken', file=sys.stderr); sys.exit(1)", "The work broke off: broken"),
        ("raise ValueError('odd')", "The work broke off: ValueError: odd"),
        ("sys.exit(3)", "exit code 3, without a word"),
        ("", "exit code 0, without a word"),
        ("print('{')", "exit code 0"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "ended by SIGKILL. The likely cause is that the machine ran out of memory",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV."),
    ],
)
def test_a_child_that_breaks_off_is_explained(recipe, pretend, script, expected):
    pretend(script)
    found = ask("generate", {}, "", True)
    assert found.code in (1, 3)
    assert expected in found.error


def test_ctrl_c_ends_the_child_and_says_that_nothing_was_written(recipe, pretend, tmp_path):
    pretend(WAITS)

    def press():
        while not (tmp_path / "ready").exists():
            threading.Event().wait(0.02)
        threading.Event().wait(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    found = ask("generate", {}, "", True)
    thread.join()
    assert found == Answer(75, error="Stopped; nothing was written.", reason="stopped")


def test_a_text_too_long_for_the_system_is_refused_before_a_child_starts(recipe, pretend):
    pretend("Path('started').touch()")
    with pytest.raises(CommandError, match="longer than 100,000 bytes"):
        ask("generate", {"prompt": "x" * 100_001}, "", True)
    assert not (recipe.parent / "started").exists()


def test_a_request_of_the_greatest_length_reaches_the_child(recipe, pretend):
    pretend("print(json.dumps({'length': len(json.loads(TARGET)['prompt'])}))")
    assert ask("generate", {"prompt": "x" * 99_000}, "", True).data == {"length": 99_000}


def test_importing_it_costs_no_library():
    code = f"import sys, {child.__name__}; print([each for each in ('torch', 'rich', 'numpy') if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
