"""The stream of events survives crashes, resumes and several writers."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines.core.events import EventLog, read_events


def test_an_event_is_one_json_line_with_id_time_and_its_fields(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl").of("mrpc")
    log.emit("metric", step=40, metrics={"loss": 0.51})
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("+00:00")
    assert record == {"id": 1, "event": "metric", "stage": "mrpc", "step": 40, "metrics": {"loss": 0.51}}


def test_ids_continue_after_a_reopen_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).emit("started")
    with open(path, "ab") as file:
        file.write(b'{"id": 2, "event": "metr')
    assert [event["id"] for event in read_events(path)] == [1]
    EventLog(path).emit("finished")
    assert [(event["id"], event["event"]) for event in read_events(path)] == [(1, "started"), (2, "finished")]


def test_two_writers_that_alternate_never_repeat_an_id(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, second = EventLog(path), EventLog(path)
    for _ in range(5):
        first.emit("progress")
        second.emit("progress")
    assert [event["id"] for event in read_events(path)] == list(range(1, 11))


def test_threads_that_write_at_once_leave_whole_lines_with_increasing_ids(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: EventLog(path).emit("sample", text="x" * number), range(200)))
    assert [event["id"] for event in read_events(path)] == list(range(1, 201))


def test_an_event_longer_than_the_window_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).emit("sample", text="y" * 300_000)
    assert EventLog(path).emit("finished") == 2


def test_a_loss_that_is_not_finite_stays_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).emit("metric", metrics={"loss": float("nan"), "norms": [float("inf"), 1.0]})
    record = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record["metrics"] == {"loss": "nan", "norms": ["inf", 1.0]}


def test_reading_starts_after_an_id(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for _ in range(4):
        log.emit("progress")
    assert [event["id"] for event in read_events(log.path, after=2)] == [3, 4]
    assert list(read_events(tmp_path / "absent.jsonl")) == []


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown event 'metrc'"):
        EventLog(tmp_path / "events.jsonl").emit("metrc")
    assert not os.path.exists(tmp_path / "events.jsonl")


def test_half_a_surrogate_pair_in_a_text_does_not_stop_a_run(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("sample", text="half \ud83d a smile")
    assert json.loads((tmp_path / "events.jsonl").read_text(encoding="utf-8"))["text"] == "half ? a smile"


def test_odd_lines_are_passed_over_by_readers_and_writers(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.emit("started")
    for odd in (b"[1]", b'{"id": "x"}', b"{}", b"3", b'{"id": Infinity}', b"[" * 100_000, b"\xff", b'{"id": null}'):
        with open(path, "ab") as file:
            file.write(odd + b"\n")
    assert EventLog(path).emit("finished") == 2
    assert [event["event"] for event in read_events(path) if event["id"] < 9] == ["started", "finished"]
