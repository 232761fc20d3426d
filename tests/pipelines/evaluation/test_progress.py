from pipelines.core.events import EventLog, read_events
from pipelines.core.interfaces import World
from pipelines.models import predict as module
from pipelines.models.predict import progress_events


class Context:
    def __init__(self, path, rank=0):
        self.events, self.world = EventLog(path), World(rank, 2)


def test_few_events_but_always_the_last(tmp_path, monkeypatch):
    clock = iter([100.0, 100.1, 100.6, 100.7])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    progress = progress_events(Context(tmp_path / "e.jsonl"), "glue/mrpc validation")
    for done in (10, 20, 30, 40):
        progress(done, 40)
    events = list(read_events(tmp_path / "e.jsonl"))
    assert [event["step"] for event in events] == [10, 30, 40]
    assert events[0] | {"id": 0, "time": ""} == {
        "id": 0,
        "time": "",
        "event": "progress",
        "step": 10,
        "total": 40,
        "what": "glue/mrpc validation",
    }


def test_only_the_main_process_writes(tmp_path):
    assert progress_events(Context(tmp_path / "e.jsonl", rank=1), "x") is None
