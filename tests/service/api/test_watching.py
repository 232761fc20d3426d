"""Events, logs, metrics, differences and cells."""

import json
import threading
import time

import pytest

from service.api import streams
from tests.service.served import RECIPE

SECRET = "hf_" + "s" * 34


def running(served, recipe=RECIPE, **query):
    attempt = served.started(served.job(recipe, **query))
    return attempt, f"/api/v1/jobs/{attempt.job}"


def metric(step, loss, stage="supervised"):
    return {"event": "metric", "stage": stage, "step": step, "metrics": {"loss": loss}}


def console(served, attempt, text, offset=0):
    folder = served.settings.jobs / attempt.job / "attempts" / attempt.id / "console"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{offset:015d}.log").write_text(text)


def stream(served, path, last=None):
    """(id, event, data) of a stream of server-sent events, to its end."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last is not None else {})
    found, one = [], {}
    with served.viewer.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if not line and one:
                found.append((one.get("id"), one.get("event"), json.loads(one["data"]) if "data" in one else None))
                one = {}
            elif line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                one[name] = value
    return found


def test_events_come_in_pages_as_they_were_written(served):
    attempt, path = running(served)
    served.written(attempt, [{"event": "started", "name": "demo"}, metric(1, 0.5), {"event": "sample", "text": "x"}])
    page = served.viewer.get(f"{path}/events", params={"after": 2, "limit": 3}).json()
    assert [each["event"] for each in page["data"]] == ["state", "started", "metric"]
    assert page["data"][2] == {
        "id": 5,
        "time": "2026-11-21T10:00:00+00:00",
        "event": "metric",
        "stage": "supervised",
        "step": 1,
        "metrics": {"loss": 0.5},
        "attempt": attempt.id,
    }
    rest = served.viewer.get(f"{path}/events", params={"after": page["last"]}).json()
    assert [each["event"] for each in rest["data"]] == ["sample"]
    assert [
        each["event"] for each in served.viewer.get(f"{path}/events", params={"kind": "metric"}).json()["data"]
    ] == ["metric"]


def test_the_stream_begins_behind_the_last_event_seen_and_ends_with_the_job(served):
    attempt, path = running(served)
    served.written(attempt, [metric(1, 0.5), metric(2, 0.25)])
    served.succeeded(attempt)
    whole = stream(served, f"{path}/events")
    ids = [int(each[0]) for each in whole[:-1]]
    assert ids == list(range(1, len(ids) + 1))
    assert whole[-1][1] == "end"
    assert stream(served, f"{path}/events", last="4") == whole[4:]
    assert [each[1] for each in stream(served, f"{path}/events", last=str(ids[-1]))] == ["end"]


def test_a_stream_that_waits_is_woken_by_events(served, monkeypatch):
    monkeypatch.setattr(streams, "LOOK_SECONDS", 60.0)  # it does not look by itself before that
    attempt, path = running(served)
    written = []

    def later():
        time.sleep(0.3)
        served.written(attempt, [metric(1, 0.5)])
        written.append(time.monotonic())
        served.succeeded(attempt)

    thread = threading.Thread(target=later)
    thread.start()
    kinds = [each[1] for each in stream(served, f"{path}/events")]
    took = time.monotonic() - written[0]
    thread.join()
    assert kinds[-3:] == ["metric", "state", "end"]
    assert took < 30


@pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "1.5", "²"])
def test_a_last_event_id_that_is_none_is_refused(served, last):
    _, path = running(served)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last.encode()}
    assert served.viewer.get(f"{path}/events", headers=headers).status_code == 422


def test_secrets_stand_in_no_event_and_no_log(served):
    served.submitter.put("/api/v1/secrets/SECRET_MY_KEY", json={"value": "correct-horse-battery"})
    attempt, path = running(served)
    served.written(
        attempt,
        [{"event": "warning", "message": f"token {SECRET}", "correct-horse-battery": ["correct-horse-battery"]}],
    )
    console(served, attempt, f"using {SECRET}\ncorrect-horse-battery\nin {served.settings.home}/jobs\n")
    events = served.viewer.get(f"{path}/events").text
    log = served.viewer.get(f"{path}/logs").text
    assert SECRET not in events + log
    assert "correct-horse-battery" not in events + log
    assert log.splitlines()[-1] == "in jobs"


def test_the_log_is_streamed_from_a_place_and_over_rotated_files(served):
    attempt, path = running(served)
    console(served, attempt, "one\ntwo\n")
    console(served, attempt, "three\nno end", offset=8)
    served.written(attempt, [{"event": "started"}])
    served.succeeded(attempt)
    pieces = stream(served, f"{path}/logs")
    assert "".join(each[2]["text"] for each in pieces[:-1]) == "one\ntwo\nthree\nno end"
    assert pieces[-1][0] == f"{attempt.id}:20"
    assert (
        "".join(each[2]["text"] for each in stream(served, f"{path}/logs", last=f"{attempt.id}:4")[:-1])
        == "two\nthree\nno end"
    )


def test_curves_keep_the_last_value_of_a_repeated_step_and_are_thinned_evenly(served):
    attempt, path = running(served)
    served.written(
        attempt,
        [metric(step, float(step)) for step in range(1, 11)]
        + [metric(10, 0.5), metric(11, float("nan")), metric(1, 9.0, "other")],
    )
    series = {(each["stage"], each["name"]): each["points"] for each in served.viewer.get(f"{path}/metrics").json()}
    assert series["supervised", "loss"] == [[step, float(step)] for step in range(1, 10)] + [[10, 0.5]]
    assert series["other", "loss"] == [[1, 9.0]]
    thin = served.viewer.get(f"{path}/metrics", params={"points": 4, "stage": "supervised"}).json()
    assert [point[0] for point in thin[0]["points"]] == [1, 4, 7, 10]


def test_the_difference_names_stages_by_their_ids(served):
    one = served.job()
    other = served.job(
        RECIPE.replace("max_steps: 4", "max_steps: 8").replace(
            "stages:\n",
            "stages:\n  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 2}}\n",
        ),
        overrides="seed=7",
    )
    found = served.viewer.get(f"/api/v1/jobs/{one}/diff/{other}").json()
    changes = {each["key"]: (each["before"], each["after"]) for each in found["changes"]}
    assert changes["stages.supervised.arguments.max_steps"] == (4, 8)
    assert changes["seed"] == (None, 7)
    assert changes["stages.pretrain.objective"] == (None, "masked_lm")
    assert not any(key.startswith("stages.evaluate") for key in changes)
    assert "+  - {stage: pretrain" in found["text"]


def test_the_cells_of_a_study_are_seen_before_and_while_they_run(served):
    study = (
        RECIPE.replace("  - {stage: publish, to: demo-model}\n", "")
        + "matrix: {stages.supervised.seed: [1, 2], stages.supervised.tuner: [full, lora]}\n"
    )
    attempt, path = running(served, study)
    assert [each["status"] for each in served.viewer.get(f"{path}/cells").json()] == ["waiting"] * 4
    served.written(
        attempt,
        [
            {"event": "cell", "cell": "cells/01", "status": "running", "labels": {}},
            {"event": "cell", "cell": "cells/01", "status": "done", "seconds": 3.5},
            {"event": "cell", "cell": "search/01-01", "status": "failed", "labels": {"trial": "x"}, "message": "no"},
        ],
    )
    cells = served.viewer.get(f"{path}/cells").json()
    assert cells[0] == {
        "cell": "cells/01",
        "labels": {"seed": "1", "tuner": "full"},
        "status": "done",
        "message": "",
        "seconds": 3.5,
    }
    assert cells[-1]["cell"] == "search/01-01"
    assert served.viewer.get(path).json()["study"] is True
    plain = served.job()
    assert [each["id"] for each in served.viewer.get("/api/v1/studies").json()["data"]] == [attempt.job]
    assert served.viewer.get(f"/api/v1/jobs/{plain}/cells").json() == []
