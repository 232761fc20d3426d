"""`/healthz` and Prometheus metrics: counted from the rows, on both databases, with labels that no client invents."""

import json
import re
import time

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, select, update

from pipelines.core.files import configs_folder
from service.api.health import MODES
from service.jobs.job import GpuSlot, Host
from service.jobs.states import Ending, Move, Reason
from service.settings import read_settings
from service.store import store as counting
from service.store import tables
from service.store.errors import Unavailable
from service.store.store import OUTCOMES, WAIT_BUCKETS
from tests.service.served import Served

MONITORING = configs_folder() / "deploy" / "monitoring"


def samples(served):
    text = served.nobody.get("/metrics").text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_is_200_and_503_without_a_database(served, monkeypatch):
    assert served.nobody.get("/healthz").json()["status"] == "ok"
    monkeypatch.setattr(served.store, "healthy", lambda: False)
    assert served.nobody.get("/healthz").status_code == 503


def test_jobs_are_counted_by_state_and_requests_by_route(served):
    job = served.job()
    served.viewer.get(f"/api/v1/jobs/{job}")
    served.viewer.get("/api/v1/jobs/x")
    found = samples(served)
    assert found["finery_jobs", ("state", "queued")] == 1
    route = ("route", "/api/v1/jobs/{job_id}")
    assert found["finery_http_requests_total", ("method", "GET"), route, ("status", "200")] == 1
    assert found["finery_http_requests_total", ("method", "GET"), route, ("status", "404")] == 1
    assert not any(job in str(key) or "acme" in str(key) for key in found), "numbers, no names"


@pytest.fixture
def served(store, tmp_path):
    return Served(read_settings({}, home=tmp_path, burst=10_000), store)


def samples_counted_anew(served):
    served.service.measurements = type(served.service.measurements)(served.service)
    return samples(served)


def test_waits_are_those_from_submission_to_the_first_attempt(served, monkeypatch):
    begun = time.time()
    clock = [begun]
    for module in ("jobs", "attempts", "store", "audit"):
        monkeypatch.setattr(f"service.store.{module}.now", lambda: clock[0])
    for wait in (0.5, 30.0, 30.0, 100_000.0):
        clock[0] = begun
        job = served.job()
        clock[0] = begun + wait
        attempt = served.started(job)
        served.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED, Reason.NODE_LOST))
        clock[0] += 50.0
        served.started(job)  # a second attempt is no second wait
    found = samples_counted_anew(served)
    assert found["finery_queue_wait_seconds_count",] == 4
    assert found["finery_queue_wait_seconds_sum",] == pytest.approx(100_060.5)
    by_limit = {limit: found["finery_queue_wait_seconds_bucket", ("le", str(limit))] for limit in WAIT_BUCKETS}
    assert [by_limit[limit] for limit in (1.0, 15.0, 60.0, 86_400.0)] == [1, 1, 3, 3]
    assert found["finery_queue_wait_seconds_bucket", ("le", "+Inf")] == 4
    assert found["finery_attempts_ended_total", ("outcome", "node_lost")] == 4
    assert found["finery_oldest_queued_seconds",] == 0


def test_attempts_are_counted_by_how_they_ended_and_that_survives_a_restart(served):
    for ending in (
        Ending(Move.SUCCEED, exit_code=0),
        Ending(Move.STOPPED, exit_code=75),
        Ending(Move.FAIL, Reason.DIVERGED, exit_code=1),
    ):
        attempt = served.started(served.job())
        served.store.attempt_started(attempt.id, attempt.fencing, {"fencing_token": 1})
        longer = update(tables.attempts).where(tables.attempts.c.id == attempt.id).values(started=time.time() - 100)
        with served.store.engine.begin() as connection:
            connection.execute(longer)
        served.store.end_attempt(attempt.id, attempt.fencing, ending)
    first = samples_counted_anew(served)
    for outcome in ("succeeded", "stopped", "diverged"):
        assert first["finery_attempts_ended_total", ("outcome", outcome)] == 1
        assert 99 < first["finery_attempt_seconds_total", ("outcome", outcome)] < 130
    again = Served(served.settings, served.store)
    assert samples_counted_anew(again)["finery_attempts_ended_total", ("outcome", "diverged")] == 1


def test_the_place_and_what_is_on_its_way(served):
    served.submitter.post("/api/v1/files", json={"filename": "a.csv"})
    served.store.report_host(Host("a", info={"isolation": {"mode": "bubblewrap"}}))
    served.store.report_host(Host("b", info={"isolation": {"mode": "invented\nby somebody"}}))
    served.store.report_host(Host("c", state="down", info={"isolation": {"mode": "none"}}))
    job = served.job()
    attempt = served.started(job)
    served.written(attempt, [{"event": "started"}] * 3)
    leases = tables.leases
    served.store.write(lambda transaction: transaction.execute(update(leases).values(expires=1.0)))
    served.store.write(lambda transaction: transaction.execute(update(tables.jobs).values(created=time.time() - 500)))
    waiting = served.job()
    served.store.write(
        lambda transaction: transaction.execute(
            update(tables.jobs).where(tables.jobs.c.id == waiting).values(created=time.time() - 200)
        )
    )
    found = samples_counted_anew(served)
    assert found["finery_uploads_in_progress",] == 1
    assert found["finery_leases_expired",] == 1
    assert 199 < found["finery_oldest_queued_seconds",] < 230
    assert found["finery_events_total",] == served.store.job(job).last_event + 1
    assert found["finery_database_up",] == 1
    assert found["finery_database_bytes",] > 50_000
    assert found["finery_home_bytes", ("space", "free")] > 0
    isolation = {mode: found["finery_isolation", ("mode", mode)] for mode in MODES}
    assert isolation == {
        "bubblewrap": 1,
        "landlock": 0,
        "container": 0,
        "host": 0,
        "none": 1,
        "other": 1,
    }  # `here` of the attempt says nothing


def test_gpus_are_free_where_a_job_could_have_them(served):
    for name in ("up", "draining", "down"):
        served.store.report_host(Host(name, slots=(GpuSlot(0), GpuSlot(1))))
    for name in ("draining", "down"):
        served.store.set_host_state(name, name)
    held = update(tables.gpu_slots).where(tables.gpu_slots.c.number == 0, tables.gpu_slots.c.host != "down")
    attempt = served.started(served.job())
    served.store.write(lambda transaction: transaction.execute(held.values(attempt=attempt.id)))
    found = samples(served)
    assert (found["finery_gpus", ("held", "true")], found["finery_gpus", ("held", "false")]) == (2, 1)
    served.store.report_host(Host("up"))  # its GPUs are gone, one of them while a job holds it
    found = samples(served)
    assert (found["finery_gpus", ("held", "true")], found["finery_gpus", ("held", "false")]) == (2, 0)


def test_labels_are_words_of_the_program_whatever_rows_say(served):
    attempt = served.started(served.job())
    served.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.FAIL, Reason.INTERNAL))
    table = tables.attempts
    served.store.write(lambda transaction: transaction.execute(update(table).values(reason="of a later version")))
    found = samples_counted_anew(served)
    assert found["finery_attempts_ended_total", ("outcome", "other")] == 1
    labels = {value for key in found if key[0].startswith("finery_attempt") for _, value in key[1:]}
    assert labels == set(OUTCOMES)


def test_it_is_counted_once_in_a_few_seconds(served, monkeypatch):
    samples_counted_anew(served)
    asked = []
    real = served.store.counts
    monkeypatch.setattr(served.store, "counts", lambda: asked.append(1) or real())
    samples_counted_anew(served)
    for _ in range(20):
        assert served.nobody.get("/metrics").status_code == 200
    assert len(asked) == 1


def test_without_a_database_it_still_tells_that_and_the_disk(served, monkeypatch):
    from service.api.health import WorkMetrics

    def away():
        raise Unavailable("away")

    monkeypatch.setattr(served.store, "counts", away)
    found = {metric.name: metric for metric in WorkMetrics(served.service).collect()}
    assert sorted(found) == ["finery_database_up", "finery_home_bytes"]
    assert found["finery_database_up"].samples[0].value == 0


def test_metrics_are_answered_without_a_database(served, monkeypatch):
    def away(read):
        raise Unavailable("away")

    monkeypatch.setattr(served.store, "read", away)
    answer = served.nobody.get("/metrics")
    assert answer.status_code == 200
    assert "finery_home_bytes" in answer.text
    assert "finery_jobs{" not in answer.text


def test_thousands_of_waiting_jobs_are_counted_by_the_database_and_not_by_us(served, monkeypatch):
    """A handful of statements whatever the queue holds, and no row of a job is read."""
    job = served.job()
    attempt = served.started(job)
    with served.store.engine.begin() as connection:
        row = dict(connection.execute(select(tables.jobs)).mappings().one())
        tried = dict(connection.execute(select(tables.attempts)).mappings().one())
        connection.execute(
            insert(tables.jobs),
            [{**row, "id": f"job-{number:026}", "state": "queued", "attempt": None} for number in range(2_000)],
        )
        connection.execute(
            insert(tables.attempts),
            [
                {
                    **tried,
                    "id": f"attempt-{number:026}",
                    "job": f"job-{number:026}",
                    "state": "ended",
                    "reason": "internal",
                    "ended": 1.0,
                }
                for number in range(1_000)
            ],
        )
    monkeypatch.setattr(counting, "Counts", lambda *given: given)
    from sqlalchemy import event

    statements = []
    event.listen(served.store.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    waits, *_ = served.store.counts()
    assert sum(waits) == 1_001
    assert len([text for text in statements if text.lstrip().upper().startswith("SELECT")]) <= 8
    assert attempt.job == job


def test_served_models_are_told_of_before_anybody_asks_one(served):
    found = samples(served)
    assert found["finery_model_processes", ("state", "idle")] == 0
    assert found["finery_model_questions_total", ("do", "chat"), ("outcome", "failed")] == 0
    assert found["finery_model_refusals_total", ("reason", "other")] == 0


def test_alerts_and_dashboard_ask_for_what_the_service_tells(served):
    assert served.nobody.get("/healthz").status_code == 200  # so that a request is counted
    told = served.nobody.get("/metrics").text
    names = set(re.findall(r"^# TYPE (finery_\w+)", told, re.MULTILINE))
    names |= {f"{name}_bucket" for name in names}
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in asked:
        assert set(re.findall(r"finery_\w+", expression)) - {"finery"} <= names, expression
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
