from service.jobs.job import HostShare, JobRequest
from service.store.results import flat_scores


def begun(store, project="p", name="tiny"):
    job = store.submit(JobRequest("name: x\n", project, name=name))[0]
    return store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)


def scored(store, value, metric="f1", benchmark="glue/mrpc", stage="evaluate", **names):
    attempt = begun(store, **names)
    store.record_stage(attempt.id, attempt.fencing, stage, metrics={benchmark: {metric: value}}, with_scores=True)
    return attempt


def test_a_stage_that_is_told_twice_is_kept_once_as_it_was_told_last(store):
    attempt = begun(store)
    store.record_stage(
        attempt.id, attempt.fencing, "pretrain", fingerprint="a", seconds=2.5, metrics={"train_runtime": 2.0}
    )
    store.record_stage(
        attempt.id, attempt.fencing, "evaluate", metrics={"glue/mrpc": {"f1": 0.5, "accuracy": 0.4}}, with_scores=True
    )
    store.record_stage(
        attempt.id, attempt.fencing, "evaluate", reused=True, metrics={"glue/mrpc": {"f1": 0.6}}, with_scores=True
    )
    first, second = store.stage_results(attempt.job)
    assert (first.stage, first.fingerprint, first.seconds, first.metrics) == (
        "pretrain",
        "a",
        2.5,
        {"train_runtime": 2.0},
    )
    assert (second.reused, second.metrics) == (True, {"glue/mrpc": {"f1": 0.6}})
    assert store.benchmarks("p") == [("glue/mrpc", "f1", 1)]
    assert store.scores_of([attempt.job]) == {attempt.job: {"glue/mrpc": {"f1": 0.6}}}


def test_the_leaderboard_is_best_first_in_the_metrics_own_direction_and_a_projects_own(store):
    for value in (0.5, 0.9, 0.7):
        scored(store, value)
    for value in (30.0, 10.0):
        scored(store, value, metric="perplexity", benchmark="english")
    scored(store, 0.99, project="q")
    assert [line.value for line in store.leaderboard("p", "glue/mrpc", "f1")] == [0.9, 0.7, 0.5]
    assert [line.value for line in store.leaderboard("p", "english", "perplexity")] == [10.0, 30.0]
    assert [line.project for line in store.leaderboard(None, "glue/mrpc", "f1", limit=2)] == ["q", "p"]
    assert store.benchmarks() == [("english", "perplexity", 2), ("glue/mrpc", "f1", 4)]


def test_between_equals_the_earlier_score_leads_and_the_published_model_is_named(store):
    first, second = scored(store, 0.5, name="first"), scored(store, 0.5, name="second")
    store.publish_model(second.id, second.fencing, name="best", fingerprint="f", path="/m")
    assert [(line.job, line.job_name, line.model) for line in store.leaderboard("p", "glue/mrpc", "f1")] == [
        (first.job, "first", None),
        (second.job, "second", "best"),
    ]


def test_scores_are_finite_numbers_of_benchmarks_only():
    metrics = {
        "glue/mrpc": {"f1": 0.5, "note": "x", "wrong": float("nan"), "flag": True, "nested": {"a": 1}},
        "train_runtime": 3.0,
    }
    assert list(flat_scores(metrics)) == [("glue/mrpc", "f1", 0.5)]


def test_the_smallest_divergence_leads_where_small_is_good(store):
    attempt = begun(store)
    for stage, divergence in (("far", 8.0), ("near", 0.5)):
        store.record_stage(
            attempt.id,
            attempt.fencing,
            stage,
            fingerprint=stage,
            seconds=1.0,
            reused=False,
            metrics={"policy": {"kl": divergence, "reward": divergence}},
            with_scores=True,
        )
    assert [each.value for each in store.leaderboard("p", "policy", "kl")] == [0.5, 8.0]
    assert [each.value for each in store.leaderboard("p", "policy", "reward")] == [8.0, 0.5]
