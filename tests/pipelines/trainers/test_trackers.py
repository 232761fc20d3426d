"""Trackers: one run of theirs for each stage that trains, and no training that waits or fails for them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers.integrations
from transformers import TrainerCallback, TrainerState

from pipelines.core.errors import StageError
from pipelines.core.events import EventLog, read_events
from pipelines.core.load import loads
from pipelines.core.training_arguments import TrainingArguments, missing_trackers
from pipelines.trainers import trackers as room
from pipelines.trainers.trackers import checked, run_id, run_name, trackers
from tests.environments import environment
from tests.mlflow_server import mlflow_server, runs_of, until

TEXT = "name: demo\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
ONE = TEXT + "  - {stage: supervised, id: mrpc, task: glue/mrpc}\n  - {stage: evaluate}\n"
TWO = TEXT + "  - {stage: supervised, id: cola, task: glue/cola}\n  - {stage: supervised, id: mrpc, task: glue/mrpc}\n"


def context(folder: Path, text: str = ONE, fingerprint: str = "c0ffee11aa") -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(
        stage_id="mrpc",
        recipe=loads(text),
        fingerprint=fingerprint,
        events=EventLog(folder / "events.jsonl", "mrpc"),
        world=SimpleNamespace(is_main=True),
    )


class Recorder(TrainerCallback):
    """A tracker as transformers has them."""

    told: list[tuple[str, str, Any]] = []
    thread: threading.Thread | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **words: Any) -> None:
        self.told.append(("begin", args.run_name, args.project))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **words: Any) -> None:
        type(self).thread = threading.current_thread()
        if "fails" in logs:
            raise ConnectionError("the tracker\nis down")
        if "hangs" in logs:
            time.sleep(30)
        self.told.append(("log", str(state.global_step), logs))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr(transformers.integrations, "get_reporting_integration_callbacks", lambda names: [Recorder])
    monkeypatch.setattr(Recorder, "told", [])
    monkeypatch.delenv("FINERY_JOB_ID", raising=False)
    return Recorder


def report(folder: Path, *logs: dict[str, float]) -> list[str]:
    """Train with these logs; returns the warnings."""
    made = context(folder)
    (tracker,) = trackers(made, TrainingArguments(report_to="dvclive"))
    args, state, control = SimpleNamespace(run_name=None, project="huggingface"), TrainerState(), SimpleNamespace()
    tracker.on_train_begin(args, state, control, model=None)
    for step, each in enumerate(logs, start=1):
        state.global_step = step
        tracker.on_log(args, state, control, logs=each)
        each["loss"] = -1.0  # what the trainer does with its own afterwards changes nothing
    tracker.on_train_end(args, state, control)
    assert (args.run_name, args.project) == (None, "huggingface")
    return [event["message"] for event in read_events(folder / "events.jsonl") if event["event"] == "warning"]


def test_reports_arrive_in_order_from_a_thread_of_their_own_under_the_name_of_the_run(
    recorder: type[Recorder], tmp_path: Path
) -> None:
    assert report(tmp_path, {"loss": 2.0}, {"loss": 1.0}) == []
    name = "demo-c0ffee11"
    assert recorder.told == [("begin", name, "demo"), ("log", "1", {"loss": 2.0}), ("log", "2", {"loss": 1.0})]
    assert recorder.thread is not threading.main_thread()


def test_a_tracker_that_fails_is_one_warning_and_left_out(recorder: type[Recorder], tmp_path: Path) -> None:
    warnings = report(tmp_path, {"loss": 2.0}, {"fails": 1.0}, {"fails": 1.0}, {"loss": 1.0})
    assert warnings == ["dvclive does not take what is reported, and is left out from here on: the tracker is down"]
    assert [each[0] for each in recorder.told] == ["begin", "log"]


def test_a_tracker_that_hangs_is_waited_for_no_longer_than_a_minute(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FINISH_SECONDS", 0.2)
    begun = time.monotonic()
    (warning,) = report(tmp_path, {"hangs": 1.0}, {"loss": 1.0})
    assert time.monotonic() - begun < 5
    assert "did not end within" in warning


def test_a_tracker_that_hangs_behind_all_that_may_wait_holds_no_training_up(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FINISH_SECONDS", 0.2)
    monkeypatch.setattr(room, "MOST_WAITING", 2)
    begun = time.monotonic()
    warnings = report(tmp_path, {"hangs": 1.0}, *({"loss": 1.0} for _ in range(3)))
    assert time.monotonic() - begun < 5
    assert len(warnings) == 1


def test_a_stage_has_one_name_for_all_its_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINERY_JOB_ID", raising=False)
    assert run_name(context(tmp_path)) == "demo-c0ffee11"
    assert run_id(context(tmp_path)) == run_id(context(tmp_path)) != run_id(context(tmp_path, fingerprint="bb"))
    monkeypatch.setenv("FINERY_JOB_ID", "job-1")
    assert run_name(context(tmp_path)) == "job-1"
    assert run_name(context(tmp_path, TWO)) == "job-1/mrpc"
    assert run_name(context(tmp_path / "cells/03")) == "job-1/03"
    # an attempt on another host has its folder elsewhere
    assert run_id(context(tmp_path / "here")) == run_id(context(tmp_path / "there"))


def test_other_ranks_and_none_report_nothing(tmp_path: Path) -> None:
    other = context(tmp_path)
    other.world.is_main = False
    assert trackers(other, TrainingArguments(report_to="wandb")) == []
    assert trackers(context(tmp_path), TrainingArguments()) == []


def test_a_library_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.core.training_arguments.find_spec", lambda name: None)
    assert missing_trackers("none") is None
    assert missing_trackers(("none", "wandb")) == (
        "reports to wandb, and the package wandb is not installed here: pip install 'finery[trackers]', or leave "
        "report_to out"
    )
    assert "pip install comet_ml" in str(missing_trackers("comet_ml"))


def test_on_a_server_keys_go_to_their_hosts_and_to_public_addresses_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FINERY_EGRESS", raising=False)
    monkeypatch.setenv("FINERY_SECRETS", str(tmp_path))
    (tmp_path / "WANDB_API_KEY").write_text("key")
    (tmp_path / "WANDB_API_KEY.hosts").write_text("api.wandb.ai")
    checked("W", "https://api.wandb.ai", "WANDB_API_KEY")
    for url, words in (
        ("https://elsewhere.example", "may not be sent to elsewhere.example"),
        ("file:///etc", "is an http or https address, and not 'file:'"),
    ):
        with pytest.raises(StageError, match=words):
            checked("W", url, "WANDB_API_KEY")
    monkeypatch.setenv("FINERY_PUBLIC_ENDPOINTS_ONLY", "1")
    with pytest.raises(StageError, match="public addresses only"):
        checked("M", "http://127.0.0.1:5000")
    monkeypatch.setenv("FINERY_EGRESS", "http://127.0.0.1:1")  # whose proxy looks at addresses itself
    checked("M", "http://127.0.0.1:5000")


# ---- the real ones: installed into environments of their own, as they bring servers and clients of their own ----------


@pytest.mark.long
def test_the_real_trackers_have_one_run_each_over_a_kill_and_a_resume(tmp_path: Path) -> None:
    """trackio and wandb write to the disk, MLflow's server is a real one, and dies before the run ends."""
    client = environment(tmp_path / "client", "FINERY_TRACKERS_BIN", "trackio", "wandb", "mlflow-skinny")
    (tmp_path / "recipe.yaml").write_text(
        "name: tracked\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
        "  - {stage: pretrain, datasets: [{path: builtin/python-docs}], max_train_samples: 200, block_size: 32,\n"
        "     arguments: {max_steps: 120, logging_steps: 5, save_steps: 20, per_device_train_batch_size: 4,\n"
        "       report_to: [trackio, wandb, mlflow]}}\n"
    )
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "MLFLOW", "FINERY"))}
    variables = outer | {
        "FINERY_HOME": str(tmp_path / "home"), "TRACKIO_DIR": str(tmp_path / "trackio"),
        "PYTHONPATH": str(Path(__file__).parents[3]), "NETRC": os.devnull, "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    events = tmp_path / "runs/tracked/events.jsonl"

    def finery(*words: str) -> subprocess.Popen[bytes]:
        run = [str(client / "python"), "-m", "pipelines", *words]
        return subprocess.Popen(run, cwd=tmp_path, env=variables, start_new_session=True)

    def has(what: str) -> bool:
        return events.is_file() and any(each["event"] == what for each in read_events(events))

    with mlflow_server(tmp_path) as root:
        variables["MLFLOW_TRACKING_URI"] = root
        first = finery("run", "recipe.yaml")
        until(lambda: has("checkpoint") or first.poll() is not None)
        time.sleep(1.0)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert finery("resume", "runs/tracked").wait(timeout=300) == 0
        (only,) = runs_of(root, "tracked")
    assert only["info"]["status"] == "FINISHED"
    assert {each["key"] for each in only["data"]["metrics"]} >= {"loss", "learning_rate", "train_loss"}
    assert [each for each in read_events(events) if each["event"] == "warning"] == []
    parts = list((tmp_path / "runs/tracked/trackers/wandb").glob("offline-run-*"))
    assert len(parts) == 2
    assert len({each.name.rpartition("-")[2] for each in parts}) == 1  # one run, in the parts of two attempts
    look = "import trackio; print([each.name for each in trackio.Api().runs('tracked')])"
    shown = subprocess.run(
        [str(client / "python"), "-c", look], env=variables, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().splitlines()[-1] == str([only["info"]["run_name"]])

    # a server that is gone: one warning, and a run that is complete
    text = (tmp_path / "recipe.yaml").read_text().replace("[trackio, wandb, mlflow]", "mlflow, seed: 7")
    (tmp_path / "recipe.yaml").write_text(text.replace("name: tracked", "name: alone").replace(", seed: 7", ""))
    assert finery("run", "recipe.yaml", "seed=7").wait(timeout=300) == 0
    events = tmp_path / "runs/alone/events.jsonl"
    (warning,) = [each["message"] for each in read_events(events) if each["event"] == "warning"]
    assert warning.startswith("mlflow does not take what is reported")
