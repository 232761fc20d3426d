"""A signal asks for a stop: at once, or after the step that is being finished; handlers are put back; no orphans."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.core.errors import Stopped
from pipelines.core.signals import StopSignal, stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_work_at_once(number: signal.Signals) -> None:
    stop = StopSignal()
    with pytest.raises(Stopped, match=f"stopped by {number.name}"), stop_on_signals(stop):  # noqa: PT012
        os.kill(os.getpid(), number)
        time.sleep(5)
        pytest.fail("the work went on")
    assert stop.requested


def test_a_signal_waits_where_a_step_is_being_finished() -> None:
    stop, reached = StopSignal(), False
    with stop_on_signals(stop):
        with stop.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            reached = stop.requested
        os.kill(os.getpid(), signal.SIGTERM)  # asking twice does not tear what is being saved
        time.sleep(0.01)
    assert reached


LIBRARY = """
import os, signal, time
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.1)
whole = True
"""


def test_a_signal_within_an_import_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_on_trial.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    stop = StopSignal()
    with pytest.raises(Stopped, match="stopped by SIGTERM"), stop_on_signals(stop):  # noqa: PT012
        with suppress(Exception):  # as transformers asks whether torch can be had
            importlib.import_module("imported_on_trial")
        time.sleep(5)
        pytest.fail("the work went on")
    assert sys.modules.pop("imported_on_trial").whole
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_nested_deferrals_hold_until_the_outermost_ends() -> None:
    stop = StopSignal()
    with stop_on_signals(stop), stop.deferred():
        with stop.deferred():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert stop.requested


def test_the_handlers_from_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError), stop_on_signals(StopSignal()):  # noqa: PT012
        assert signal.getsignal(signal.SIGTERM) != before[1]
        raise ValueError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal, sys, time
from pipelines.core.signals import die_with_parent
die_with_parent(signal.SIGKILL, int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
''', sys.argv[1] if len(sys.argv) > 1 else str(__import__("os").getpid())])
time.sleep(60)
"""


def gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_a_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child, 0.1)
        parent.kill()
        assert gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_a_child_whose_parent_was_gone_before_dies_too() -> None:
    program = "import os, signal; from pipelines.core.signals import die_with_parent; die_with_parent(signal.SIGTERM, os.getppid() + 1); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert "alive" not in done.stdout
