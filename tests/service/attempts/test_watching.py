import os
import signal
import time

import pytest
from sqlalchemy.exc import OperationalError

from service.attempts import publishing, watching
from service.attempts.watching import REASONS, last_sentence, outcome_of
from service.executors.local import marked
from service.executors.protocol import ExecutorError, Exited
from service.jobs.states import AttemptState, Move, Reason, State
from service.store.errors import Unavailable
from tests.service.executors.worlds import until


def working(job):
    return job.progress.get("step", 0) >= 3


def last_attempt(server, job):
    return server.store.attempts(job)[-1]


def test_a_job_runs_to_its_end_and_its_model_scores_and_events_are_in_the_store(server):
    job = server.submit(steps=4)
    ended, attempt = server.run(job)
    assert ended.state is State.SUCCEEDED
    events = server.store.events_after(job)
    assert [event.fields["state"] for event in events if event.event == "state"] == [
        "queued",
        "starting",
        "running",
        "succeeded",
    ]
    assert [event.step for event in events if event.event == "metric"] == [1, 2, 3, 4]
    [model] = server.store.models("default")
    assert (model.name, model.job, model.parameters, model.scores) == ("my-model", job, 7, {"glue/mrpc": {"f1": 0.8}})
    assert (
        server.settings.models / "default" / "my-model" / model.fingerprint / "model.safetensors"
    ).read_bytes() == b"tiny"
    assert [result.stage for result in server.store.stage_results(job)] == ["pretrain", "evaluate"]
    [score] = server.store.leaderboard("default", "glue/mrpc", "f1")
    assert (score.job, score.value, score.model) == (job, 0.8, "my-model")
    ended = server.store.attempt(attempt.id)
    assert (ended.state, ended.exit_code) == (AttemptState.ENDED, 0)
    assert marked(attempt.id) == []


@pytest.mark.parametrize(
    ("said", "reason", "state"),
    [
        ("diverged", Reason.DIVERGED, State.FAILED),
        ("data_error", Reason.DATA_ERROR, State.FAILED),
        ("out_of_memory", Reason.OUT_OF_MEMORY, State.FAILED),
        ("publish_error", Reason.BAD_RECIPE, State.FAILED),
        ("internal", Reason.INTERNAL, State.QUEUED),
    ],
)
def test_the_reason_that_a_run_gives_decides_whether_it_is_tried_again(server, said, reason, state):
    ended, _ = server.run(server.submit(steps=1, evaluate=f"fail-with-{said}"))
    assert (ended.state, ended.reason) == (state, reason)
    assert ended.message == f"stage 'pretrain': it ended with {said}"
    assert (ended.not_before > time.time()) == (state is State.QUEUED)


def test_a_paused_job_goes_on_from_its_checkpoint_in_a_new_attempt(server):
    job = server.submit(steps=12)
    server.place(job)
    server.until(job, working)
    server.store.move(job, Move.PAUSE)
    paused = server.until(job, lambda found: found.state is State.PAUSED)
    assert last_attempt(server, job).exit_code == 75
    assert paused.retries == 0
    at = server.steps(job)[-1][1]
    server.store.move(job, Move.RESUME)
    ended, attempt = server.run(job)
    assert ended.state is State.SUCCEEDED
    assert attempt.number == 2
    steps = server.steps(job)
    assert [step for _, step, _ in steps] == list(range(1, 13)), "no step was done twice, none left out"
    assert {began for _, step, began in steps if step > at} == {at}
    assert [event.step for event in server.store.events_after(job, kinds=["metric"])] == list(range(1, 13))


def test_a_cancelled_job_ends_without_publishing(server):
    job = server.submit(steps=500)
    attempt = server.place(job)
    server.until(job, working)
    server.store.move(job, Move.CANCEL)
    assert server.until(job, lambda found: found.over).state is State.CANCELLED
    assert marked(attempt.id) == []
    assert server.store.models("default") == []


@pytest.mark.parametrize("error", [ExecutorError("it does not answer"), OSError(28, "No space left on device")])
def test_a_stop_that_could_not_be_told_is_told_again_at_the_next_look(server, monkeypatch, error):
    stop, failures = server.executor.stop, [error]

    def fails_once(handle, grace):
        if failures:
            raise failures.pop()
        stop(handle, grace)

    monkeypatch.setattr(server.executor, "stop", fails_once)
    monkeypatch.setattr(watching, "PATIENCE", 0.1)
    job = server.submit(steps=100_000)
    server.place(job)
    server.until(job, working)
    server.store.move(job, Move.PAUSE)
    assert server.until(job, lambda found: found.state is State.PAUSED).message == "stopped; what was done is saved"


def test_what_is_written_is_taken_in_while_a_stop_cannot_be_told(server, monkeypatch):
    def fails(*_):
        raise ExecutorError("it does not answer")

    monkeypatch.setattr(server.executor, "stop", fails)
    job = server.submit(steps=500)
    server.place(job)
    at = server.until(job, working).progress["step"]
    server.store.move(job, Move.PAUSE)
    assert server.until(job, lambda found: not found.active or found.progress["step"] > at).state is State.PAUSING
    monkeypatch.undo()  # the end of the test stops it


def test_a_job_that_gave_way_is_queued_again_at_once_and_loses_no_try(server):
    job = server.submit(steps=200)
    server.place(job)
    server.until(job, working)
    server.store.move(job, Move.PREEMPT, reason=Reason.PREEMPTED)
    queued = server.until(job, lambda found: not found.active)
    assert (queued.state, queued.retries, queued.preemptions) == (State.QUEUED, 0, 1)
    assert queued.not_before <= time.time()


def test_a_job_that_is_cancelled_before_it_starts_never_starts(server):
    job = server.submit()
    server.place(job)
    server.store.move(job, Move.CANCEL)
    assert server.until(job, lambda found: found.over).state is State.CANCELLED
    assert not server.folders(job).run.exists()


@pytest.mark.parametrize("victim", ["launcher_pid", "child_pid"])
def test_a_killed_process_costs_the_steps_since_the_last_checkpoint_and_nothing_else(server, victim):
    job = server.submit(steps=10)
    attempt = server.place(job)
    server.until(job, working)
    os.kill(last_attempt(server, job).handle[victim], signal.SIGKILL)
    lost = server.until(job, lambda found: not found.active)
    assert (lost.state, lost.reason, lost.retries) == (State.QUEUED, Reason.NODE_LOST, 0)
    assert marked(attempt.id) == []
    ended, second = server.run(job)
    assert ended.state is State.SUCCEEDED
    steps = server.steps(job)
    began = {began for _, _, began in steps} - {0}
    assert len(began) == 1, "the second process began with a checkpoint"
    [checkpoint] = began
    reached = max(step for _, step, start in steps if start == 0)
    assert checkpoint in (
        {reached - 1} if reached % 2 else {reached, reached - 2}
    )  # one every two steps, and a kill may precede it
    assert second.fencing > attempt.fencing
    assert len(server.store.models("default")) == 1


def test_a_restarted_server_goes_on_with_what_runs(server):
    job = server.submit(steps=20)
    attempt = server.place(job)
    server.until(job, working)
    pid = last_attempt(server, job).handle["child_pid"]
    server.watcher.stop()
    server.restarted()
    assert server.until(job, lambda found: not found.active).state is State.SUCCEEDED
    assert {process for process, _, _ in server.steps(job)} == {pid}
    assert server.store.attempts(job)[-1].id == attempt.id
    assert [event.step for event in server.store.events_after(job, kinds=["metric"])] == list(range(1, 21))


def test_a_job_that_ended_while_no_server_ran_is_finished_by_the_next_one(server):
    job = server.submit(steps=4)
    attempt = server.place(job)
    server.until(job, lambda found: found.state is State.RUNNING)
    server.watcher.stop()
    until(lambda: marked(attempt.id) == [])
    assert server.store.job(job).state is State.RUNNING
    server.restarted()
    assert server.until(job, lambda found: not found.active).state is State.SUCCEEDED
    assert len(server.store.models("default")) == 1


def test_a_server_killed_after_starting_and_before_writing_it_down_finds_the_process(server, monkeypatch):
    job = server.submit(steps=6)
    server.place(job)
    kept = server.store.attempt_started
    monkeypatch.setattr(server.store, "attempt_started", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    future = server.watcher._look_at_all()[0]
    with pytest.raises(KeyboardInterrupt):
        future.result()
    monkeypatch.setattr(server.store, "attempt_started", kept)
    assert last_attempt(server, job).state is AttemptState.ASSIGNED
    server.restarted()
    assert server.until(job, lambda found: not found.active).state is State.SUCCEEDED
    assert len({process for process, _, _ in server.steps(job)}) == 1


@pytest.mark.parametrize("moment", ["publish_model", "end_attempt"])
def test_a_server_killed_while_publishing_publishes_once(server, monkeypatch, moment):
    job = server.submit(steps=2)
    server.place(job)
    real, calls = getattr(server.store, moment), []

    def once(*given, **named):
        calls.append(given)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(server.store, moment, once)
    until(lambda: bool(server.watcher.step() or calls))
    server.restarted()
    assert server.until(job, lambda found: not found.active).state is State.SUCCEEDED
    assert len(calls) == 2
    [model] = server.store.models("default")
    folder = server.settings.models / "default" / "my-model"
    assert [path.name for path in folder.iterdir()] == [model.fingerprint]


def test_a_model_that_cannot_be_put_into_the_registry_is_tried_again(server, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "place", full)
    ended, _ = server.run(server.submit(steps=1))
    assert (ended.state, ended.reason) == (State.QUEUED, Reason.INTERNAL)
    assert "No space left" in ended.message
    monkeypatch.undo()
    ended, _ = server.run(ended.id)
    assert ended.state is State.SUCCEEDED
    assert len(server.store.models("default")) == 1


def test_an_attempt_that_was_replaced_is_killed_and_writes_nothing(server):
    job = server.submit(steps=500)
    attempt = server.place(job)
    server.until(job, working)
    stale = server.store.live_attempts("me")
    server.store.fence(attempt.id)
    before = server.store.job(job).last_event

    def thaw():
        """A server that was frozen since it asked the store looks at what it was told then, and finds something to write."""
        server.watcher._look(*stale[0])
        return marked(attempt.id) == []

    until(thaw)
    assert server.store.job(job).last_event == before


def test_a_recipe_whose_file_is_gone_fails_before_anything_starts(server):
    recipe = "name: tiny\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: pretrain, objective: masked_lm, datasets: [{path: 'file:file-gone'}]}\n"
    ended, _ = server.run(server.submit(recipe=recipe))
    assert (ended.state, ended.reason) == (State.FAILED, Reason.BAD_RECIPE)
    assert "'file-gone' is gone" in ended.message


def test_a_launcher_that_cannot_start_leaves_the_job_queued_with_the_reason(server, monkeypatch):
    monkeypatch.setattr(server.executor, "_python", ("/no/such/python",))
    ended, _ = server.run(server.submit())
    assert (ended.state, ended.reason) == (State.QUEUED, Reason.NODE_LOST)
    assert "/no/such/python" in ended.message
    first = ended.not_before - ended.updated
    again, _ = server.run(ended.id)
    assert again.not_before - again.updated > first, "each loss in a row waits longer"


def test_an_error_of_ours_at_one_attempt_does_not_hold_up_the_others(server, monkeypatch, caplog):
    good, bad = server.submit(steps=1), server.submit(steps=1)
    server.place(good)
    broken = server.place(bad)
    follow = server.watcher._follow

    def fails(attempt, job, handle):
        if attempt.id == broken.id:
            raise ZeroDivisionError
        follow(attempt, job, handle)

    monkeypatch.setattr(server.watcher, "_follow", fails)
    assert server.until(good, lambda found: not found.active).state is State.SUCCEEDED
    assert server.store.job(bad).active
    assert "could not be looked at" in caplog.text
    monkeypatch.undo()
    server.watcher._rest.clear()
    assert server.until(bad, lambda found: not found.active).state is State.SUCCEEDED


def fails(*_, **__):
    raise ZeroDivisionError


@pytest.fixture
def impatient(monkeypatch):
    """Errors are looked for again at once, and three in a row are too many."""
    monkeypatch.setattr(watching, "PATIENCE", 0.0)
    monkeypatch.setattr(watching, "MOST_ERRORS", 3)


def given_up(server, job):
    ended = server.until(job, lambda found: not found.active)
    assert (ended.state, ended.reason, ended.message) == (State.QUEUED, Reason.INTERNAL, watching.GIVEN_UP)
    attempt = last_attempt(server, job)
    assert attempt.state is AttemptState.ENDED
    assert marked(attempt.id) == []
    return attempt


def test_an_attempt_that_cannot_be_prepared_does_not_keep_its_place_for_ever(server, monkeypatch, impatient):
    job = server.submit()
    server.place(job)
    monkeypatch.setattr(watching, "prepare", fails)
    given_up(server, job)


def test_a_running_attempt_that_cannot_be_followed_is_ended(server, monkeypatch, impatient):
    job = server.submit(steps=500, secrets=("SECRET_X",))
    server.place(job)
    server.until(job, working)
    monkeypatch.setattr(watching, "secrets_of", fails)
    assert given_up(server, job).exit_code is None


def test_an_attempt_whose_rest_cannot_be_taken_in_ends_without_it(server, monkeypatch, impatient):
    job = server.submit(steps=1)
    attempt = server.place(job)
    server.until(job, lambda found: found.state is State.RUNNING)
    until(lambda: marked(attempt.id) == [])
    monkeypatch.setattr(watching.Intake, "take", fails)
    assert given_up(server, job).exit_code == 1


@pytest.mark.parametrize(
    "error",
    [Unavailable("it does not answer"), OperationalError("", {}, Exception("disk I/O error"))],
    ids=["away", "broken"],
)
def test_an_attempt_outlives_an_outage_of_the_database(server, monkeypatch, impatient, error):
    def away(*_, **__):
        raise error

    job = server.submit(steps=500)
    server.place(job)
    server.until(job, working)
    attempt, job_then = server.store.live_attempts("me")[0]
    monkeypatch.setattr(server.store, "write", away)
    monkeypatch.setattr(watching.Intake, "take", away)
    for _ in range(watching.MOST_ERRORS + 2):
        server.watcher._look(attempt, job_then)
    assert marked(attempt.id)


def test_an_attempt_outlives_an_executor_that_does_not_answer(server, monkeypatch, impatient):
    def away(*_):
        raise ExecutorError("it does not answer")

    job = server.submit(steps=500)
    server.place(job)
    server.until(job, working)
    stale = server.store.live_attempts("me")[0]
    monkeypatch.setattr(server.executor, "poll", away)
    for _ in range(watching.MOST_ERRORS + 2):
        server.watcher._look(*stale)
    assert marked(stale[0].id)
    assert server.store.job(job).state is State.RUNNING


def test_secrets_in_a_run_s_words_do_not_reach_the_store(server, monkeypatch):
    job = server.submit(steps=1)
    server.place(job)
    server.until(job, lambda found: not found.active)
    from service.attempts.ingesting import Intake
    from service.safety.redaction import Redactor

    server.folders(job).events.open("a").write(
        '{"id": 999, "time": "2030-01-01T00:00:00+00:00", "event": "failed", "message": "token abcd-secret-1"}\n'
    )
    last = Intake(server.store, server.folders(job), last_attempt(server, job), Redactor(["abcd-secret-1"])).last_word()
    assert last["message"] == "token [secret]"


FAILED = {"event": "failed", "reason": "diverged", "message": "stage 'a': the loss is nan"}


def test_done_is_done_whatever_was_printed():
    assert outcome_of(Exited(0), FAILED, "Traceback").reason is None


@pytest.mark.parametrize(
    ("ended", "code", "reason"),
    [
        (Exited(75), 75, None),
        (Exited(75, asked=True), 75, None),
        (Exited(-9, asked=True), 75, None),  # it had no time left to save; its last checkpoint serves
        (Exited(-15, asked=True), 75, None),  # stopped before it listened to signals
        (Exited(2), 2, Reason.BAD_RECIPE),
        (Exited(-9), -9, Reason.NODE_LOST),
        (Exited(-15), -15, Reason.NODE_LOST),
        (Exited(-11), -11, Reason.INTERNAL),
        (Exited(-9, "out_of_memory"), -9, Reason.OUT_OF_MEMORY),
        (Exited(1), 1, Reason.DIVERGED),
    ],
)
def test_exit_codes_and_signals_have_reasons(ended, code, reason):
    outcome = outcome_of(ended, FAILED, "")
    assert (outcome.exit_code, outcome.reason) == (code, reason)
    assert outcome.message


def test_a_failure_speaks_with_the_sentence_of_its_last_event():
    assert outcome_of(Exited(1), FAILED, "noise").message == "stage 'a': the loss is nan"


def test_without_an_event_the_last_line_speaks():
    assert outcome_of(Exited(1), None, "noise\nKeyError: 'x'\n").message == "KeyError: 'x'"
    assert outcome_of(Exited(1), {"event": "stopped"}, "").message == "it ended with exit code 1 and without a word"


def test_every_reason_that_pipelines_may_give_is_known():
    from pipelines.core import errors

    given = {
        kind.reason for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FineryError)
    }
    assert given - {"stopped"} <= set(REASONS)


def test_the_command_s_own_sentence_is_found_below_the_noise():
    assert (
        last_sentence("Loading: 50%\rLoading: 100%\nfinery: the disk is full; free some\nand more")
        == "the disk is full; free some\nand more"
    )


def test_a_recipe_s_mistakes_are_all_told():
    text = "recipe.yaml:3  stages[0].stage: unknown\nrecipe.yaml:9  seed: is -1\n"
    assert outcome_of(Exited(2), None, text).message == text.strip()


def test_an_executor_that_cannot_tell_now_is_asked_again_and_the_attempt_starts_once(server, monkeypatch):
    """As Slurm's does while its controller is away: nobody knows whether the attempt began."""
    specs = []
    start, reattach = server.executor.start, server.executor.reattach

    def away(*_):
        raise ExecutorError("Slurm does not answer")

    def noted(spec):
        specs.append(spec)
        return start(spec)

    job = server.submit(steps=2, max_seconds=500.0)
    attempt = server.place(job)
    monkeypatch.setattr(server.executor, "start", away)
    monkeypatch.setattr(server.executor, "reattach", away)
    server.watcher.step()
    assert server.store.attempt(attempt.id).state is AttemptState.ASSIGNED
    monkeypatch.setattr(server.executor, "start", noted)
    monkeypatch.setattr(server.executor, "reattach", reattach)
    assert server.until(job, lambda found: not found.active).state is State.SUCCEEDED
    assert [each.attempt_id for each in specs] == [attempt.id]
    assert 400 < specs[0].seconds <= 500, "what is left of the job's time"
