"""Runs of evals in the store: each row is counted once, what is over stays over, and all of it takes room."""

import threading

import pytest

from service.store.errors import Conflict, DiskQuotaExceeded, NotFound, QuotaExceeded
from service.store.evals import BESIDE, COMPLETED, ERRORED, FAILED, MOST_OPEN, PASSED, WAITING, bytes_of
from service.store.store import Store

CRITERIA = [{"name": "a", "type": "string_check"}]
RIGHT = [{"name": "a", "passed": True, "score": 1.0}]


@pytest.fixture
def made(store):
    """An eval and a run of three rows."""
    store.ensure_project("p")
    of = store.add_eval("p", "e", {"type": "custom"}, CRITERIA, {"k": "v"})
    return of, store.add_run(of, "r", {"type": "jsonl"}, {}, "", [({"n": n}, {}) for n in range(3)], "submitter")


def test_a_row_is_counted_once_whoever_finishes_it(store, made):
    of, run = made
    usage = {"m": {"calls": 1, "prompt_tokens": 5, "completion_tokens": 2}}
    assert store.begin_run(run.id)
    assert store.finish_item(run.id, 1, PASSED, {"output": []}, RIGHT, usage)
    assert not store.finish_item(run.id, 1, ERRORED, {}, [], usage)
    assert store.finish_item(run.id, 0, ERRORED, {}, [], usage)
    summary = store.run(run.id, of.id, "p").summary
    assert summary["counts"] == {"pass": 1, "fail": 0, "error": 1}
    assert summary["criteria"] == {"a": {"passed": 1, "failed": 0}}
    assert summary["usage"] == {"m": {"calls": 2, "prompt_tokens": 10, "completion_tokens": 4}}
    assert [each.number for each in store.eval_items(run.id, states=(WAITING,))] == [2]
    assert [each.number for each in store.every_eval_item(run.id)] == [0, 1]


def test_what_is_over_takes_nothing_in(store, made):
    of, run = made
    store.cancel_run(run.id, of.id, "p")
    assert not store.begin_run(run.id)
    assert not store.finish_item(run.id, 0, PASSED, {}, RIGHT, {})
    assert not store.end_run(run.id, COMPLETED)
    assert store.open_runs() == []
    other = store.add_run(of, "r", {}, {}, "", [({}, {})], "submitter")
    assert store.end_run(other.id, FAILED, {"code": "x"})
    with pytest.raises(Conflict):
        store.cancel_run(other.id, of.id, "p")


def test_evals_are_paged_by_either_time_and_go_with_their_runs(store, made):
    of, run = made
    more = [store.add_eval("p", str(number), {}, CRITERIA, {}) for number in range(3)]
    store.update_eval(of.id, "p", "changed", None)
    assert [each.id for each in store.evals("p", limit=2)] == [of.id, more[0].id]
    assert [each.id for each in store.evals("p", after=more[0].id)] == [more[1].id, more[2].id]
    assert [each.name for each in store.evals("p", by="updated", newest_first=True, limit=1)] == ["changed"]
    assert store.evals("others") == []
    store.delete_eval(of.id, "p")
    assert store.eval_items(run.id) == []
    with pytest.raises(NotFound):
        store.run(run.id, of.id, "p")


def test_a_project_has_so_many_open_runs_and_no_more(store, made):
    of, _ = made
    for _ in range(MOST_OPEN - 1):
        store.add_run(of, "r", {}, {}, "", [({}, {})], "submitter")
    with pytest.raises(QuotaExceeded):
        store.add_run(of, "r", {}, {}, "", [({}, {})], "submitter")


def test_everything_of_an_eval_counts_until_it_is_deleted(store, made):
    of, run = made
    for number in range(3):
        assert store.finish_item(run.id, number, PASSED, {"output": "x" * 1000}, RIGHT, {})
        assert not store.finish_item(run.id, number, PASSED, {"output": "x" * 1000}, RIGHT, {})
    kept = store.disk_usage("p")
    assert kept.evals == kept.total == store.eval(of.id, "p").bytes + store.run(run.id, of.id, "p").bytes
    assert 3 * 1000 < store.run(run.id, of.id, "p").bytes < 3 * (1000 + 2 * BESIDE) + bytes_of({"type": "jsonl"}, {})
    assert store.disk_usages() == [kept]
    assert [(each.kind, each.id, each.name, each.bytes) for each in store.largest("p")] == [
        ("evals", of.id, "e", kept.evals)
    ]
    store.update_eval(of.id, "p", None, {"k": "v" * 101})
    assert store.disk_usage("p").evals == kept.evals + 100
    store.delete_run(run.id, of.id, "p")
    assert store.disk_usage("p").evals == store.eval(of.id, "p").bytes
    store.delete_eval(of.id, "p")
    assert store.disk_usage("p").total == 0


def test_a_full_project_takes_no_evals_and_no_runs(store, made):
    of, run = made
    kept = store.disk_usage("p").total
    store.set_project("p", max_bytes=kept + 100_000)
    rows = [({"text": "x" * 1000}, {})] * 200
    with pytest.raises(
        DiskQuotaExceeded, match=r"^255 kB more do not fit: project 'p' keeps .* \(evals .* or evals, or"
    ):
        store.add_run(of, "r", {}, {}, "", rows, "submitter")
    with pytest.raises(DiskQuotaExceeded, match="more do not fit"):
        store.add_eval("p", "e", {}, [{"name": "x" * 100_000}], {})
    assert store.disk_usage("p").total == kept
    assert store.eval_items(run.id, limit=1000) == store.eval_items(run.id)
    store.add_run(of, "r", {}, {}, "", rows[:50], "submitter")
    store.set_project("p", max_bytes=store.disk_usage("p").total)
    for refused in (
        lambda: store.add_run(of, "r", {}, {}, "", [({}, {})], "submitter"),
        lambda: store.add_eval("p", "e", {}, CRITERIA, {}),
    ):
        with pytest.raises(DiskQuotaExceeded, match=r"^project 'p' keeps"):
            refused()
    store.delete_run(run.id, of.id, "p")
    assert store.add_eval("p", "e", {}, CRITERIA, {})


def test_runs_that_are_made_at_once_come_to_no_more_than_the_project_may_keep(store, store_url, made):
    of, _ = made
    rows = [({"text": "x" * 1000}, {})] * 20
    most = store.disk_usage("p").total + 3 * (sum(bytes_of(*row, {}, []) for row in rows) + bytes_of({}, {}))
    store.set_project("p", max_bytes=most)
    servers = [Store(store_url) for _ in range(3)]
    gate, refused = threading.Barrier(9), []

    def make(server):
        gate.wait()
        try:
            server.add_run(of, "r", {}, {}, "", rows, "submitter")
        except DiskQuotaExceeded as error:
            refused.append(error)

    threads = [threading.Thread(target=make, args=(servers[number % 3],)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in servers:
        each.close()
    assert (len(refused), store.disk_usage("p").total) == (6, most)


def test_a_permission_goes_with_the_last_model_of_its_name(store):
    from tests.service.store.test_results import begun

    attempt = begun(store)
    project = store.job(attempt.job).project
    store.ensure_project("guests")
    publish = {"name": "m", "path": "/m"}
    first, second = (
        store.publish_model(attempt.id, attempt.fencing, fingerprint=each, **publish) for each in ("a", "b")
    )
    made = store.grant(project, "m", ["guests", "guests"])
    assert len(made) == 1
    assert [each.id for each in store.granted_models("guests")] == [second.id, first.id]
    store.mark_deleted(second.id)
    assert [each.id for each in store.granted_models("guests", "m")] == [first.id]
    store.mark_deleted(first.id)
    store.publish_model(attempt.id, attempt.fencing, fingerprint="c", **publish)
    assert store.granted_models("guests") == []
    for projects, model in ((["nowhere"], "m"), (["guests"], "nothing")):
        with pytest.raises(NotFound):
            store.grant(project, model, projects)
