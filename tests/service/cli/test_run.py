import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from pipelines.core.events import EventLog
from service.cli.__main__ import main
from service.cli.run import Follower

GOES_WELL = """
log = open_run()
log.emit("started", name="fake")
log.of("mrpc").emit("started")
log.of("mrpc").emit("metric", step=10, metrics={"loss": 0.5})
log.of("mrpc").emit("progress", step=10, total=10)
log.of("mrpc").emit("stage_finished", seconds=1.5, reused=False)
log.of("evaluate").emit("stage_finished", seconds=0.5, reused=True)
log.of("publish").emit("stage_finished", seconds=0.5, reused=False)
for name, files in {
    "02-evaluate": {
        "metrics.json": {"glue/mrpc": {"accuracy": 0.8, "f1": 0.85}},
        "details.json": {"glue/mrpc": {
            "model": "mrpc", "intervals": {"accuracy": [0.76, 0.84]},
            "baselines": {"majority": {"accuracy": 0.684, "f1": 0.812}, "naive_bayes": {"accuracy": 0.7, "f1": 0.8}},
        }},
    },
    "03-publish": {"publication.json": {"location": "/models/fake"}},
}.items():
    (RUN / "stages" / name).mkdir(exist_ok=True)
    for file, content in files.items():
        (RUN / "stages" / name / file).write_text(json.dumps(content))
print("a library's noise")
log.emit("finished", seconds=2.5)
"""
FAILS = """
log = open_run()
log.of("mrpc").emit("started")
print("a library's noise")
log.of("mrpc").emit("failed", message="stage 'mrpc': the column 'sentence3' is missing; correct it", reason="data_error")
print("finery: stage 'mrpc': the column 'sentence3' is missing; correct it", file=sys.stderr)
sys.exit(1)
"""
STOPS = """
log = open_run()
stop = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: stop.append(number))
log.of("mrpc").emit("started")
for step in range(1, 2000):
    log.of("mrpc").emit("progress", step=step, total=2000)
    time.sleep(0.02)
    if stop:
        time.sleep(0.5)
        log.of("mrpc").emit("checkpoint", step=step, path="x")
        log.of("mrpc").emit("stopped", message=f"stage 'mrpc' stopped at step {step} of 2000 after {len(stop)} signal", reason="stopped")
        sys.exit(75)
"""


def test_a_run_ends_with_scores_baselines_an_honest_sentence_and_what_to_type_next(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["run", "recipe.yaml"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"mrpc\s+0\.800\s+0\.760 – 0\.840\s+0\.850", out)
    assert re.search(r"majority class\s+0\.684", out)
    assert "'mrpc' beats naive Bayes: accuracy 0.800 against 0.700" in out
    assert "/models/fake" in out
    assert "finery init YOUR.csv" in out
    assert "mrpc: done in 1.5 s, loss 0.500" in err
    assert "evaluate: reused" in err
    assert "noise" not in out + err
    assert "a library's noise" in (recipe.parent / "runs/fake/console.log").read_text()


def test_events_of_an_earlier_run_are_not_shown_as_this_one(recipe, pretend, capsys):
    pretend(FAILS)
    assert main(["run", "recipe.yaml"]) == 1
    capsys.readouterr()
    pretend(GOES_WELL)
    assert main(["run", "recipe.yaml"]) == 0
    assert "sentence3" not in "".join(capsys.readouterr())


def test_json_is_one_object_and_nothing_else(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["run", "recipe.yaml", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert (answer["status"], answer["exit_code"], answer["run"], answer["seconds"]) == ("done", 0, "runs/fake", 2.5)
    assert [(stage["id"], stage["status"]) for stage in answer["stages"]] == [
        ("mrpc", "done"),
        ("evaluate", "reused"),
        ("publish", "done"),
    ]
    assert answer["scores"][0]["metrics"] == {"accuracy": 0.8, "f1": 0.85}
    assert answer["scores"][0]["intervals"] == {"accuracy": [0.76, 0.84]}
    assert answer["baselines"]["glue/mrpc"]["naive_bayes"]["accuracy"] == 0.7
    assert answer["published"] == ["/models/fake"]


def test_quiet_shows_the_scores_without_the_progress(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["run", "recipe.yaml", "-q"]) == 0
    out, err = capsys.readouterr()
    assert "0.800" in out
    assert err == ""


def test_a_bad_recipe_is_refused_with_every_mistake_before_anything_starts(recipe, pretend, capsys):
    pretend("Path('started').touch()")
    recipe.write_text("name: fake\nmodel: {architecture: {preset: bert-tinny}}\nstages:\n  - {stage: evalute}\n")
    assert main(["run", "recipe.yaml", "sed=3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) >= 3
    assert "recipe.yaml:2" in err
    assert "Did you mean 'evaluate'?" in err
    assert "Did you mean 'seed'?" in err
    assert [each.name for each in recipe.parent.iterdir() if each.name != "fake_pipelines.py"] == ["recipe.yaml"]


def test_a_bad_recipe_as_json_lists_its_mistakes(recipe, pretend, capsys):
    pretend("")
    assert main(["run", "recipe.yaml", "sed=3", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["exit_code"]) == ("refused", 2)
    assert [mistake["key"] for mistake in answer["mistakes"]] == ["sed"]


def test_a_failure_is_the_sentence_of_its_event_not_the_noise_around_it(recipe, pretend, capsys):
    pretend(FAILS)
    assert main(["run", "recipe.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Stage 'mrpc': the column 'sentence3' is missing; correct it." in err
    assert "noise" not in err
    assert "finery run recipe.yaml" in err
    assert "runs/fake/console.log" in err


def test_a_failure_as_json_names_the_stage_and_the_reason(recipe, pretend, capsys):
    pretend(FAILS)
    assert main(["run", "recipe.yaml", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["error"]["stage"], answer["error"]["reason"]) == ("mrpc", "data_error")
    assert answer["resume"] == "finery resume runs/fake"


@pytest.mark.parametrize(
    ("script", "code", "expected"),
    [
        (
            "print('noise', file=sys.stderr); print('finery: runs/fake is in use', file=sys.stderr); sys.exit(1)",
            1,
            "\nruns/fake is in use\n",
        ),
        ("import torchh", 1, "not foreseen: ModuleNotFoundError: No module named 'torchh'"),
        ("print('some library gave up'); os._exit(1)", 1, "some library gave up"),
        ("os._exit(1)", 1, "without a word"),
        ("print('finery: this cannot be', file=sys.stderr); sys.exit(2)", 2, "this cannot be"),
    ],
)
def test_a_child_that_dies_without_an_event_is_quoted(recipe, pretend, capsys, script, code, expected):
    pretend(script)
    assert main(["run", "recipe.yaml"]) == code
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(("name", "cause"), [("SIGKILL", "ran out of memory"), ("SIGSEGV", "A library crashed")])
def test_a_killed_run_names_the_signal_the_likely_cause_and_how_to_continue(recipe, pretend, capsys, name, cause):
    pretend(f"log = open_run(); log.of('mrpc').emit('started'); os.kill(os.getpid(), signal.{name}); time.sleep(9)")
    assert main(["run", "recipe.yaml"]) == 1
    err = capsys.readouterr().err
    assert f"killed by {name}" in err
    assert cause in err
    assert "finery resume runs/fake" in err
    assert "mrpc: failed" in err


def test_resume_passes_the_folder_on_and_shows_the_stages_of_its_recipe(recipe, pretend, capsys):
    pretend("log = open_run()\n" + FAILS)
    assert main(["run", "recipe.yaml"]) == 1
    pretend("assert (VERB, TARGET) == ('resume', 'runs/fake')\n" + GOES_WELL)
    assert main(["resume", "runs/fake"]) == 0
    assert "'mrpc' beats naive Bayes" in capsys.readouterr().out


@pytest.mark.parametrize(("make", "said"), [(False, "no such run folder"), (True, "holds no recipe.yaml")])
def test_resume_refuses_what_is_no_run_folder(recipe, pretend, capsys, make, said):
    pretend("Path('started').touch()")
    if make:
        os.makedirs("runs/x")
    assert main(["resume", "runs/x"]) == 2
    assert said in capsys.readouterr().err
    assert not os.path.exists("started")


def command_in_terminal(script, tmp_path, *arguments):
    """The command on a pseudo-terminal of its own, as its foreground job."""
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import sys\nfrom service.cli import child\n"
        f"child.PIPELINES = (sys.executable, {str(script)!r})\n"
        "from service.cli.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        os.execv(sys.executable, [sys.executable, str(driver), *arguments])
    return pid, terminal


def read_until(terminal, wanted, seconds=20):
    shown, end = "", time.monotonic() + seconds
    while wanted not in shown:
        assert time.monotonic() < end, shown
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the other side is closed
            break
    return shown


def test_ctrl_c_in_a_terminal_reaches_the_child_once_and_a_second_one_does_not_tear_the_checkpoint(
    recipe, pretend, tmp_path
):
    pid, terminal = command_in_terminal(pretend(STOPS), tmp_path, "run", "recipe.yaml")
    shown = read_until(terminal, "/2,000")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, "is being saved")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, "To continue")
    shown += read_until(terminal, "no more to come")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 75
    assert "Already stopping" in shown
    assert "after 1 signal" in shown
    assert "finery resume runs/fake" in shown


def test_sigterm_to_the_command_stops_the_child_and_exits_75(recipe, pretend, tmp_path):
    script = pretend(STOPS)
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys\nfrom service.cli import child\nchild.PIPELINES = (sys.executable, {str(script)!r})\n"
        "from service.cli.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen([sys.executable, str(driver), "run", "recipe.yaml"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 20
    while not (tmp_path / "runs/fake/events.jsonl").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "after 1 signal" in err
    assert "To continue where it stopped:  finery resume runs/fake" in err


def test_a_stop_before_the_child_is_ready_is_a_stop_too(recipe, pretend, tmp_path):
    script = pretend("Path('up').touch(); time.sleep(30)")  # still importing: the default action of SIGTERM
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys\nfrom service.cli import child\nchild.PIPELINES = (sys.executable, {str(script)!r})\n"
        "from service.cli.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen([sys.executable, str(driver), "run", "recipe.yaml"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 20
    while not (tmp_path / "up").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "finery run recipe.yaml" in err


def kinds(events):
    return [(event["event"], event["id"]) for event in events]


def test_events_that_were_there_before_are_not_told_again(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("started")
    follower = Follower(log.path)
    assert follower.new() == []
    log.emit("finished", seconds=1)
    assert kinds(follower.new()) == [("finished", 2)]
    assert follower.new() == []


def test_a_file_that_does_not_exist_yet_is_waited_for(tmp_path):
    follower = Follower(tmp_path / "events.jsonl")
    assert follower.new() == []
    EventLog(tmp_path / "events.jsonl").emit("started")
    assert kinds(follower.new()) == [("started", 1)]


def test_half_a_line_is_told_once_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    follower = Follower(path)
    line = json.dumps({"id": 1, "event": "progress", "what": "Bücher"}, ensure_ascii=False).encode() + b"\n"
    for end in range(1, len(line)):
        path.write_bytes(line[:end])
        assert follower.new() == []
    path.write_bytes(line)
    assert kinds(follower.new()) == [("progress", 1)]


def test_a_line_torn_by_a_crash_is_cut_off_and_nothing_is_lost(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("started")
    with open(log.path, "ab") as file:
        file.write(b'{"id": 2, "event": "prog')
    follower = Follower(log.path)
    EventLog(log.path).emit("finished", seconds=1)  # cuts the torn line off first
    assert kinds(follower.new()) == [("finished", 2)]


def test_a_file_that_was_cut_short_is_read_again_by_ids(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("started")
    with open(log.path, "ab") as file:
        file.write(b"\xff not json, but a whole line, longer than what comes after it" + b"." * 200 + b"\n")
    follower = Follower(log.path)
    EventLog(log.path).emit("finished", seconds=1)
    assert kinds(follower.new()) == [("finished", 2)]
