import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from pipelines.core.errors import CommandError
from service.cli import child
from service.cli.child import Child, ChildAnswer, ask, call, refuse

WAITS_FOR_A_SIGNAL = """
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
Path("ready").touch()
end = time.monotonic() + 20
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)  # the checkpoint is being written: further signals must not arrive here
Path("got").write_text(json.dumps(got))
sys.exit(75 if got else 3)
"""


def wait_for(path, seconds=15):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def terminal():
    """SIGHUP as a terminal leaves it, also when the tests themselves were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("sent", "arrives"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")])
def test_a_signal_reaches_the_child_exactly_once_however_often_it_is_sent(recipe, pretend, tmp_path, sent, arrives):
    pretend(WAITS_FOR_A_SIGNAL)
    with Child(["run"]) as child:
        wait_for(tmp_path / "ready")
        for _ in range(3):
            os.kill(os.getpid(), signal.Signals[sent])
            time.sleep(0.05)
        assert child.wait(20) == 75
    assert (tmp_path / "got").read_text() == f"[{signal.Signals[arrives].value}]"
    assert child.stops == 3


def test_the_child_is_not_in_the_process_group_that_a_terminal_signals(recipe, pretend, tmp_path):
    pretend("Path('group').write_text(str(os.getpgrp()) + ' ' + str(os.getpid()))")
    with Child(["run"]) as child:
        assert child.wait(20) == 0
    group, own = (tmp_path / "group").read_text().split()
    assert group == own != str(os.getpgrp())


def test_handlers_are_put_back(recipe, pretend):
    pretend("")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = [signal.getsignal(number) for number in numbers]
    with Child(["run"]) as child:
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert child.wait(20) == 0
    assert [signal.getsignal(number) for number in numbers] == before


def test_an_ignored_hangup_stays_ignored_by_the_command_and_by_its_child(recipe, pretend, tmp_path):
    pretend("""
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
os.kill(os.getpid(), signal.SIGHUP)
Path("ready").touch()
while not Path("enough").exists():
    time.sleep(0.01)
Path("got").write_text(json.dumps([ignored, got]))
""")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a command
    with Child(["run"]) as child:
        wait_for(tmp_path / "ready")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.2)
        (tmp_path / "enough").touch()
        assert child.wait(20) == 0
    assert (tmp_path / "got").read_text() == "[true, []]"
    assert child.stops == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_an_error_of_ours_does_not_leave_the_child_running(recipe, pretend, tmp_path):
    pretend(WAITS_FOR_A_SIGNAL)

    def show_something():
        with Child(["run"]):
            wait_for(tmp_path / "ready")
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="display"):
        show_something()
    assert (tmp_path / "got").read_text() == f"[{signal.SIGTERM.value}]"


def test_the_child_knows_its_parent_and_does_not_import_from_the_users_folder(recipe, pretend, tmp_path):
    pretend("Path('told').write_text(json.dumps([os.environ['FINERY_PARENT_PID'], sys.flags.safe_path]))")
    with Child(["run"]) as child:
        assert child.wait(20) == 0
    assert (tmp_path / "told").read_text() == f'["{os.getpid()}", true]'


def test_a_negative_code_names_the_signal_that_killed_the_child(recipe, pretend):
    pretend("os.kill(os.getpid(), signal.SIGKILL)")
    with Child(["run"]) as child:
        assert child.wait(20) == -signal.SIGKILL


def test_the_tail_is_what_was_printed_last_without_rewritten_lines(recipe, pretend):
    pretend("print('\\n'.join(f'line {n}' for n in range(5000))); sys.stderr.write('10%\\r50%\\r100%\\n\\nthe end\\n')")
    with Child(["run"]) as child:
        child.wait(20)
        lines = child.tail().splitlines()
    assert lines[-2:] == ["100%", "the end"]
    assert lines[0] == "line 4982"


def test_what_was_printed_is_kept_in_the_run_folder_below_earlier_runs(recipe, pretend, tmp_path):
    pretend("print('noise')")
    folder = tmp_path / "run"
    folder.mkdir()
    for _ in range(2):
        with Child(["run", "recipe.yaml"]) as child:
            child.wait(20)
            assert child.keep_noise(folder) == folder / "console.log"
    log = (folder / "console.log").read_text()
    assert log.count("noise\n") == 2
    assert log.count("run recipe.yaml\n") == 2


def test_without_a_run_folder_nothing_is_kept(recipe, pretend, tmp_path):
    pretend("print('noise')")
    with Child(["run"]) as child:
        child.wait(20)
        assert child.keep_noise(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()


def test_nothing_is_left_in_the_temporary_folder(recipe, pretend, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    pretend("print('noise'); os.kill(os.getpid(), signal.SIGKILL)")
    with Child(["run"]) as child:
        child.wait(20)
        assert child.tail() == "noise"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_verb_that_answers_at_once_gives_code_and_both_streams(recipe, pretend):
    pretend("print('out', *sys.argv[1:]); print('err', file=sys.stderr); sys.exit(2)")
    assert call(["gc", "--dry-run"]) == (2, "out gc --dry-run\n", "err\n")


def test_pausing_the_command_pauses_the_child_and_continuing_continues_it(recipe, pretend, tmp_path):
    script = pretend("""
with open("count", "ab", buffering=0) as file:
    for _ in range(100000):
        file.write(b".")
        time.sleep(0.01)
        if Path("enough").exists():
            break
""")
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import sys; from service.cli import child\n"
        f"child.PIPELINES = (sys.executable, {str(script)!r})\n"
        "with child.Child(['run']) as it:\n    sys.exit(it.wait(60))\n"
    )

    def count():
        return (tmp_path / "count").stat().st_size

    process = subprocess.Popen([sys.executable, str(driver)], process_group=0)
    try:
        wait_for(tmp_path / "count")
        os.kill(process.pid, signal.SIGTSTP)
        time.sleep(0.5)
        still = count()
        time.sleep(0.3)
        assert count() == still
        os.kill(process.pid, signal.SIGCONT)
        end = time.monotonic() + 20
        while count() == still:
            assert time.monotonic() < end, "the child was not continued"
            time.sleep(0.01)
        (tmp_path / "enough").touch()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


WAITS = """
Path("ready").touch()
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(75))
time.sleep(20)
"""


def test_the_child_is_asked_with_one_json_object_and_its_answer_is_the_last_line(recipe, pretend):
    pretend("print('noise of a library'); print(json.dumps({'verb': VERB, 'asked': json.loads(TARGET)}))")
    assert ask("attention", {"text": 'ä " -x'}, "", True) == ChildAnswer(
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
    assert found == ChildAnswer(code, error="no such thing", reason="model_error")
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
        (
            "import faulthandler; faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(20)",
            "The work broke off: the model's chat template ran for too long",
        ),
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
    assert found == ChildAnswer(75, error="Stopped; nothing was written.", reason="stopped")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("stopped by SIGINT", "Stopped; nothing was written."),
        ("Stopped; the same command goes on in runs/x.", "Stopped; the same command goes on in runs/x."),
    ],
)
def test_a_child_that_keeps_what_it_did_says_so_when_it_is_stopped(recipe, pretend, tmp_path, message, told):
    error = json.dumps({"error": {"message": message, "reason": "stopped"}})
    pretend(
        WAITS.replace("lambda number, frame: sys.exit(75)", f"lambda number, frame: (print({error!r}), sys.exit(75))")
    )

    def press():
        wait_for(tmp_path / "ready")
        threading.Event().wait(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    found = ask("reproduce", {}, "", True)
    thread.join()
    assert found == ChildAnswer(75, error=told, reason="stopped")


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
