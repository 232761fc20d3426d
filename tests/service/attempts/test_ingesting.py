import json

from hypothesis import given
from hypothesis import strategies as st

from service.attempts.ingesting import EventBatch, is_score, read_batch


def line(number, **more):
    return json.dumps({"id": number, "event": "metric", **more}).encode() + b"\n"


def read_all(path, size, offset=0):
    found = []
    while True:
        batch = read_batch(path, offset, size)
        assert batch.odd == 0
        if batch.offset == offset:
            return found, offset
        found += batch.events
        offset = batch.offset


@given(lengths=st.lists(st.integers(0, 90), max_size=30), size=st.integers(1, 200))
def test_every_whole_line_is_read_once_whatever_the_size_of_the_batches(tmp_path_factory, lengths, size):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(b"".join(line(number, text="x" * length) for number, length in enumerate(lengths, 1)))
    found, offset = read_all(path, size)
    assert [event["id"] for event in found] == list(range(1, len(lengths) + 1))
    assert offset == path.stat().st_size


@given(cut=st.integers(0, 200))
def test_a_torn_last_line_waits_until_it_is_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    whole = line(1) + line(2, text="y" * 40) + line(3)
    path.write_bytes(whole[:cut])
    first, offset = read_all(path, 64)
    assert len(first) == whole[:cut].count(b"\n")
    path.write_bytes(whole)
    second, end = read_all(path, 64, offset)
    assert [event["id"] for event in first + second] == [1, 2, 3]
    assert end == len(whole)


def test_a_file_that_is_not_there_yet_has_nothing_new(tmp_path):
    assert read_batch(tmp_path / "events.jsonl", 0) == EventBatch([], 0)


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1))
    assert [event["id"] for event in read_batch(path, 10_000).events] == [1]


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'\n\xff\xfe\n[1]\n{"id": "x", "event": "metric"}\n{"id": 4}\n' + line(5))
    batch = read_batch(path, 0)
    assert [event["id"] for event in batch.events] == [5]
    assert batch.offset == path.stat().st_size
    assert (batch.odd, batch.why) == (4, "it is not JSON")


def test_scores_are_told_from_the_numbers_of_a_training():
    assert is_score({"glue/mrpc": {"f1": 0.9}})
    assert not is_score({"train_runtime": 1.5})
    assert not is_score({})
    assert not is_score(None)
