"""A stage on several processes: what a rank leaves is what the driver raises; a world of another size is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core import errors
from pipelines.core.errors import Busy, DataError, Diverged, FineryError, ProcessLost, StageError, Stopped
from pipelines.core.signals import StopSignal
from pipelines.runs import distributed
from service.attempts.watching import outcome_of
from service.executors.protocol import Exited
from service.jobs.states import Reason


@pytest.mark.parametrize(
    "kind", [DataError, Diverged, StageError, Stopped, errors.OutOfMemory, errors.DiskFull, errors.ModelError, Busy]
)
def test_an_error_keeps_its_kind_and_words_on_the_way_to_the_driver(kind: type[FineryError], tmp_path: Path) -> None:
    distributed.write_failure(tmp_path, kind("what happened and what to do"))
    found = distributed.read_failure(tmp_path)
    assert type(found) is kind
    assert str(found) == "what happened and what to do"
    assert list(tmp_path.iterdir()) == []
    assert distributed.read_failure(tmp_path) is None


def test_the_first_rank_that_fails_is_the_one_that_is_heard(tmp_path: Path) -> None:
    distributed.write_failure(tmp_path, DataError("the cause"))
    distributed.write_failure(tmp_path, StageError("connection reset by peer"))
    assert str(distributed.read_failure(tmp_path)) == "the cause"


def test_a_torn_failure_is_none(tmp_path: Path) -> None:
    (tmp_path / distributed.FAILURE).write_text('{"type": "Dat')
    assert distributed.read_failure(tmp_path) is None


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Put a small program in torchrun's place; returns what it was started with."""

    def put(program: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def start(command: list[str], **keywords: Any) -> subprocess.Popen[bytes]:
            seen["command"], seen["env"] = command, keywords["env"]
            return subprocess.Popen([sys.executable, "-c", program, *command], **keywords)

        monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(Popen=start))
        return seen

    return put


def test_the_ranks_get_the_stage_and_share_the_cores(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = agent("pass")
    distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())
    assert seen["command"][1:3] == ["-m", "torch.distributed.run"]
    assert "--nproc_per_node=2" in seen["command"]
    assert seen["command"][-4:] == [str(tmp_path), "mrpc", str(tmp_path), "2"]
    assert int(seen["env"]["OMP_NUM_THREADS"]) >= 1
    assert seen["env"]["FINERY_PARENT_PID"] == ""


def test_what_a_rank_left_is_raised(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    agent(
        f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Diverged", "message": "the loss is nan"}}\'); raise SystemExit(1)'
    )
    with pytest.raises(Diverged, match="the loss is nan"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_failure_of_an_earlier_attempt_is_not_heard_again(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    distributed.write_failure(tmp_path, DataError("from yesterday"))
    agent("pass")
    distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_ranks_that_end_without_a_word(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "ranks.log").write_text("  exitcode  : -9 (pid: 1), of yesterday\n")
    agent("raise SystemExit(3)")
    with pytest.raises(
        StageError, match=r"ended with exit code 3 and without a word; `finery resume` continues .*ranks.log"
    ):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


@pytest.mark.parametrize("heard", [False, True], ids=["silence", "an echo of the others"])
def test_a_rank_that_was_killed_is_told_with_its_signal(
    heard: bool, agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    echo = f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Unforeseen", "message": "connection closed by peer"}}\'); '
    agent(f"{echo if heard else ''}print('failed (exitcode: -9) local_rank: 1 (pid: 71)'); raise SystemExit(1)")
    with pytest.raises(StageError, match=r"killed by SIGKILL, most often because .* memory ran out; `finery resume`"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_killed_rank_is_no_stop_although_the_others_were_stopped_by_torchrun(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    echo = f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Stopped", "message": "stopped by SIGTERM"}}\'); '
    agent(f"{echo}print('failed (exitcode: -9) local_rank: 1 (pid: 71)'); raise SystemExit(1)")
    with pytest.raises(ProcessLost, match="one of its processes was killed by SIGKILL"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_rank_that_was_ended_by_a_signal_that_nobody_here_sent_is_lost(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    agent(
        f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Stopped", "message": "stopped by SIGTERM"}}\'); raise SystemExit(1)'
    )
    with pytest.raises(ProcessLost, match="one of its processes was killed by SIGTERM"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_torchrun_s_own_end_by_a_signal_is_a_lost_process(
    number: signal.Signals, agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    agent(f"import os; os.kill(os.getpid(), {int(number)})")
    with pytest.raises(ProcessLost, match=f"one of its processes was killed by {number.name}") as raised:
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())
    last = {"event": "failed", "reason": raised.value.reason, "message": str(raised.value)}
    assert outcome_of(Exited(1, False, None), last, "").reason is Reason.NODE_LOST


def test_a_stop_reaches_the_ranks_and_not_their_agent(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    rank = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(7)); open('ready', 'w'); time.sleep(60)"
    agent(
        f"import os, subprocess, sys; os.chdir({str(tmp_path)!r}); child = subprocess.Popen([sys.executable, '-c', {rank!r}]); "
        "code = child.wait(); open('rank-ended-with', 'w').write(str(code)); raise SystemExit(1)"
    )
    stop = StopSignal()

    class Asked(StopSignal):
        @property  # type: ignore[override]
        def requested(self) -> bool:
            return (tmp_path / "ready").exists()

        @requested.setter
        def requested(self, value: bool) -> None: ...

    assert stop.requested is False
    with pytest.raises(Stopped, match="stage 'mrpc' was stopped"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, Asked())
    assert (tmp_path / "rank-ended-with").read_text() == "7"
