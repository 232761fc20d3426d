import json

from pipelines.core.events import EventLog
from service.cli.run import Follower


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
