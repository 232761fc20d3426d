"""Versions, aliases, deletion and comparisons of published models."""

import pytest

from service.jobs.job import HostShare, JobRequest
from service.jobs.states import Ending, Move
from service.store.audit import Actor, acting
from service.store.errors import Conflict, NotFound

MRPC = "glue/mrpc"


@pytest.fixture
def publish(store):
    """Publishes the next version of a name; `published(0.9)` scores F1 0.9."""
    attempts = {}

    def publish(f1=None, name="m", project="p", fingerprint=None, scores=None):
        if project not in attempts:
            job = store.submit(JobRequest("name: x\n", project))[0]
            attempts[project] = store.start(
                job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30
            )
        attempt, publish.count = attempts[project], publish.count + 1
        return store.publish_model(
            attempt.id,
            attempt.fencing,
            name=name,
            fingerprint=fingerprint or f"f{publish.count}",
            path=f"/models/{publish.count}",
            scores=scores or ({} if f1 is None else {MRPC: {"f1": f1, "accuracy": 0.5}}),
        )

    publish.count = 0
    return publish


def test_a_model_is_published_once_for_each_fingerprint_of_a_name_whichever_attempt_does_it(store):
    job = store.submit(JobRequest("name: x\n", "p"))[0]
    attempt = store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    publish = {"name": "m", "fingerprint": "a", "path": "/1", "base": "bert", "parameters": 4_400_000_000}
    first = store.publish_model(attempt.id, attempt.fencing, **publish)
    assert store.publish_model(attempt.id, attempt.fencing, **{**publish, "path": "/2"}) == first
    assert (first.path, first.parameters, first.job) == ("/1", 4_400_000_000, job.id)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED))
    again = store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    assert store.publish_model(again.id, again.fencing, **publish) == first
    assert store.models("p") == [first]


def test_models_of_another_project_are_not_found_and_pages_follow(store, publish):
    made = [publish() for _ in range(3)]
    for call in (
        lambda: store.model("q", "m"),
        lambda: store.model("q", "m@1"),
        lambda: store.model_by_id(made[0].id, "q"),
        lambda: store.mark_deleted(made[0].id, "q"),
        lambda: store.model_name("q", "m"),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.models("q") == []
    page = store.models("p", limit=2)
    assert [*page, *store.models("p", after=page[-1].id)] == made[::-1]
    assert store.models("p", job="job-x") == []
    store.mark_deleted(made[1].id, "p")
    assert store.models("p", name="m", job=made[0].job) == [made[2], made[0]]


def test_a_reference_names_a_version_an_alias_or_the_newest(store, publish):
    one, two, three = publish(0.7), publish(0.9), publish(0.8)
    assert [each.version for each in (one, two, three)] == [1, 2, 3]
    store.set_alias(one.id, "production", "p")
    named = {"m": three, "m@latest": three, "m@best": two, "m@production": one, "m@2": two, "m@3": three}
    assert {reference: store.model("p", reference) for reference in named} == named
    for unknown in ("m@4", "m@0", "m@staging", "m@01", "other", "m@", "@1"):
        if unknown == "m@":
            assert store.model("p", unknown) == three
            continue
        with pytest.raises(NotFound):
            store.model("p", unknown)
    with pytest.raises(NotFound, match="there is no model 'm@staging'; its aliases: latest, best, production; its ver"):
        store.model("p", "m@staging")
    with pytest.raises(NotFound):
        store.model("q", "m@production")
    assert store.model("p", "m", fingerprint="f1") == one
    with pytest.raises(
        NotFound, match="there is no version of 'm' with the fingerprint 'f9'; its versions have f3, f2, f"
    ):
        store.model("p", "m", fingerprint="f9")
    for reference, project in (("other", "p"), ("m", "q")):
        with pytest.raises(NotFound, match=f"there is no model '{reference}'$"):
            store.model(project, reference, fingerprint="f1")


def test_best_goes_by_the_first_score_until_another_is_named_and_each_in_its_own_direction(store, publish):
    english = {"english": {"perplexity": 20.0, "bits_per_byte": 1.5}}
    one = publish(scores={**english, MRPC: {"f1": 0.9}})
    two = publish(scores={"english": {"perplexity": 10.0, "bits_per_byte": 1.6}, MRPC: {"f1": 0.8}})
    publish()  # was not scored, and is no candidate
    assert (store.model_name("p", "m").benchmark, store.model_name("p", "m").metric) == ("english", "perplexity")
    assert store.model("p", "m@best") == two
    assert store.set_benchmark("p", "m", MRPC, "f1").metric == "f1"
    assert store.model("p", "m@best") == one
    with pytest.raises(Conflict, match=r"no version of 'm' was scored on 'glue/cola.f1'; their scores: english.bits"):
        store.set_benchmark("p", "m", "glue/cola", "f1")
    publish(name="plain")
    with pytest.raises(NotFound):
        store.model("p", "plain@best")


def test_an_alias_moves_is_removed_and_the_trail_knows_who_did_it(store, publish):
    one, two = publish(), publish()
    with acting(Actor("token-1", "submitter", "p")):
        store.set_alias(one.id, "staging", "p")
        store.set_alias(one.id, "staging", "p")  # nothing moved, nothing is written
        about = store.set_alias(two.id, "staging", "p")
        assert [(each.alias, each.version, each.set_by) for each in about.aliases] == [
            ("latest", 2, ""),
            ("staging", 2, "token-1"),
        ]
        store.remove_alias("p", "m", "staging")
    with pytest.raises(NotFound):
        store.remove_alias("p", "m", "staging")
    with pytest.raises(NotFound):
        store.set_alias(one.id, "staging", "q")
    trail = [(each.action, each.details) for each in store.audit(actor="token-1")]
    assert trail == [
        ("model.unalias", {"name": "m", "alias": "staging", "was": 2}),
        ("model.alias", {"name": "m", "version": 2, "alias": "staging", "was": 1}),
        ("model.alias", {"name": "m", "version": 1, "alias": "staging"}),
    ]


def test_a_promotion_that_was_tested_against_another_version_changes_nothing(store, publish):
    one, two, three = publish(), publish(), publish()
    store.set_alias(one.id, "production", "p", promotion={})
    store.set_alias(two.id, "production", "p", expect=one.id, promotion={"p": 0.01})
    with pytest.raises(Conflict, match="moved while the versions were compared"):
        store.set_alias(three.id, "production", "p", expect=one.id, promotion={"p": 0.01})
    assert store.model("p", "m@production") == two


def test_a_deleted_version_is_out_of_sight_until_it_is_restored_and_its_number_is_never_given_again(store, publish):
    one, two = publish(0.9), publish(0.8)
    store.mark_deleted(two.id, "p")
    assert [each.version for each in store.models("p")] == [1]
    assert [each.version for each in store.models("p", deleted=True)] == [2]
    assert store.model("p", "m@latest") == store.model("p", "m") == one
    for look in (lambda: store.model("p", "m@2"), lambda: store.model_by_id(two.id)):
        with pytest.raises(NotFound):
            look()
    with pytest.raises(NotFound):
        store.restore_model("q", "m")
    assert store.restore_model("p", "m@2") == two
    store.mark_deleted(two.id, "p")
    [marked] = store.outlived_models(4e9, 7.0)
    assert store.outlived_models(marked.deleted + 6 * 86_400, 7.0) == []
    assert store.purge_model(two.id, marked.deleted)
    with pytest.raises(NotFound):
        store.restore_model("p", "m")
    assert publish(0.7).version == 3


def test_publishing_a_deleted_version_again_brings_it_back_and_a_restored_one_is_not_purged(store, publish):
    one = publish(fingerprint="same")
    marked = store.mark_deleted(one.id)
    assert publish(fingerprint="same") == one
    assert not store.purge_model(one.id, marked.deleted)
    assert store.audit(action="model.restore")[0].details["why"] == "it was published again"


def test_permissions_come_back_with_a_model_and_go_when_it_is_purged_or_another_takes_its_name(store, publish):
    def asked():
        return [each.reference for each in store.granted_models("q")]

    publish(project="q", name="other")
    one = publish()
    [granted] = store.grant("p", "m", ["q"])
    marked = store.mark_deleted(one.id)
    assert asked() == []
    with pytest.raises(NotFound):
        store.grant("p", "m", ["q"])
    store.restore_model("p", "m")
    assert (asked(), store.permissions("p", "m")) == (["m@1"], [granted])
    two = publish()
    for each in (one, two):
        marked = store.mark_deleted(each.id)
        assert store.purge_model(each.id, marked.deleted)
        assert len(store.permissions("p", "m")) == (1 if each is one else 0)
    three = publish()
    store.grant("p", "m", ["q"])
    store.mark_deleted(three.id)
    publish()  # nobody was let to ask this one
    assert asked() == []
    store.restore_model("p", "m@3")
    assert asked() == []


def test_what_an_alias_names_or_a_living_job_uses_is_not_deleted(store, publish):
    one, two = publish(), publish()
    store.set_alias(one.id, "production", "p")
    with pytest.raises(Conflict, match=r"'m@1' is what 'm@production' names; promote another version"):
        store.mark_deleted(one.id, "p")
    version = {"id": two.id, "reference": two.reference}
    job = store.submit(JobRequest("name: y\n", "p", models={"m@latest": version}))[0]
    with pytest.raises(Conflict, match=rf"'m@2' is used by job '{job.id}'"):
        store.mark_deleted(two.id, "p")
    attempt = store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    assert store.mark_deleted(two.id, "p").deleted is not None
    assert store.job(job.id).request.models == {"m@latest": version}


def test_the_same_request_is_the_same_job_wherever_its_alias_points_by_now(store):
    request = {"recipe": "name: x\n", "project": "p", "idempotency_key": "k"}
    first = store.submit(JobRequest(**request, models={"m": {"id": "model-1", "reference": "m@1"}}))
    again = store.submit(JobRequest(**request, models={"m": {"id": "model-2", "reference": "m@2"}}))
    assert again == (first[0], False)


def test_a_comparison_is_kept_once_and_goes_with_its_versions(store, publish):
    one, two = publish(), publish()
    assert store.comparison(two.id, one.id) is None
    store.keep_comparison(two.id, one.id, {"benchmarks": [1]})
    store.keep_comparison(two.id, one.id, {"benchmarks": [2]})
    assert store.comparison(two.id, one.id) == {"benchmarks": [1]}
    assert store.comparison(one.id, two.id) is None
    marked = store.mark_deleted(one.id)
    store.purge_model(one.id, marked.deleted)
    assert store.comparison(two.id, one.id) is None
    store.keep_comparison(two.id, one.id, {})  # one of them is gone: nothing to keep, and no error
