"""Watches every live attempt of one server: starts it, takes in what it writes, stops it, and ends it once it is proven dead.

One thread asks the store what is live and hands each attempt to a small pool, one worker at a time per attempt. What is
done here can be done again: a server that was killed at any point goes on from the store's last word, because starting
is idempotent, ingesting is exactly once, publishing is idempotent, and an attempt ends once.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from pipelines.errors import EXIT_DONE, EXIT_STOPPED, RecipeError
from service.attempts import limits, publishing
from service.attempts.environment import secrets_of
from service.attempts.folders import folders_of, record_of
from service.attempts.ingesting import plain_count, plain_scores, plain_text
from service.attempts.outcome import Outcome, outcome_of
from service.attempts.preparing import PIPELINES, Missing, prepare
from service.attempts.stage_store import take_over
from service.attempts.taking_in import Intake, plain_record
from service.executors.console import tail
from service.executors.protocol import Executor, ExecutorError, Exited, Handle, Lost, Running
from service.executors.records import delete_secrets
from service.jobs.job import Attempt, Job
from service.jobs.states import STOPPING, AttemptState, Reason, State
from service.safety.secrets import Redactor, of_environment
from service.scheduler.retries import ending_of, losses_in_a_row, stops_in_a_row
from service.settings import Settings
from service.store.errors import Fenced, NotFound, Unavailable
from service.store.store import Store

TICK = 0.25
"""Seconds between two looks when nobody wakes it."""
WORKERS = 8
KILL_SECONDS = 5.0
"""A worker waits so long for a tree to die, then lets others have their turn and looks again."""
CANCEL_SECONDS = 10.0
"""A cancelled attempt needs no checkpoint: it has less time than one that is paused."""
LIMITS_SECONDS = 1.0
"""How often an attempt's time and its signs of life are looked at."""
UNISOLATED = (
    "the server that was to start it cannot isolate jobs from itself; tell its operator (`finery doctor` says what is missing), then retry the job"
)
PATIENCE = 5.0
"""Seconds until an attempt whose look raised an error is looked at again."""
MOST_ERRORS = 10
"""So many looks in a row at an attempt that has ended may raise an error that nobody foresaw; then it ends without being taken in."""
MODEL = re.compile(r"[A-Za-z0-9][\w.:@-]{0,199}", re.ASCII)
FINGERPRINT = re.compile(r"[0-9A-Za-z]{1,64}")
"""What a publish stage names its folder, and its state."""

log = logging.getLogger(__name__)


class Watcher:
    """The attempts whose leases this server holds."""

    def __init__(self, store: Store, settings: Settings, executor: Executor, holder: str, pipelines: Sequence[str] = PIPELINES) -> None:
        """`pipelines` is the command that runs an attempt."""
        self._store = store
        self._settings = settings
        self._executor = executor
        self._holder = holder
        self._pipelines = pipelines
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="attempt")
        self._busy: dict[str, Future[None]] = {}
        self._rest: dict[str, float] = {}
        self._told: dict[str, State | Reason] = {}
        self._looked: dict[str, float] = {}
        """When an attempt's limits were last looked at."""
        self._errors: dict[str, int] = {}
        """Looks in a row that raised an error."""
        self._redactor = Redactor(of_environment())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)

    def start(self) -> None:
        """Watch in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, after what is being done. Attempts keep running."""
        self._stop.set()
        self._store.changes.touch(["attempts"])
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=True)

    def step(self) -> None:
        """Look once at every live attempt and wait until all were looked at."""
        wait(self._look_at_all())

    def _run(self) -> None:
        while not self._stop.is_set():
            seen = self._store.changes.version("attempts")
            try:
                self._look_at_all()
            except Unavailable as error:
                log.warning("%s", error)
            except Exception:
                log.exception("looking for live attempts failed; trying again")
            self._store.changes.wait("attempts", seen, TICK)

    def _look_at_all(self) -> list[Future[None]]:
        busy = {name for name, future in list(self._busy.items()) if not future.done()}
        live = self._store.live_attempts(self._holder)
        for known in (self._busy, self._rest, self._told, self._errors, self._looked):
            for gone in known.keys() - {attempt.id for attempt, _ in live} - busy:
                del known[gone]
        started = []
        for attempt, job in live:  # one that was being looked at when the store was asked may have ended since
            if attempt.id not in busy and self._rest.get(attempt.id, 0.0) <= time.monotonic():
                self._busy[attempt.id] = self._pool.submit(self._look, attempt, job)
                started.append(self._busy[attempt.id])
        return started

    def _look(self, attempt: Attempt, job: Job) -> None:
        try:
            if attempt.state is AttemptState.ASSIGNED:
                self._begin(attempt, job)
            else:
                self._follow(attempt, job, self._handle(attempt))
            self._errors.pop(attempt.id, None)
        except Fenced:
            self._abandon(attempt)
        except (ExecutorError, Unavailable) as error:
            log.warning("attempt %s: %s", attempt.id, error)
            self._rest[attempt.id] = time.monotonic() + 4 * TICK
        except Exception:
            log.exception("attempt %s could not be looked at; trying again", attempt.id)
            self._errors[attempt.id] = self._errors.get(attempt.id, 0) + 1
            self._rest[attempt.id] = time.monotonic() + PATIENCE

    def _handle(self, attempt: Attempt) -> Handle:
        return Handle(attempt.executor, attempt.id, int(attempt.handle["fencing_token"]), attempt.handle)

    def _begin(self, attempt: Attempt, job: Job) -> None:
        """Start an attempt, or find the one that a killed server started, or prove that it never will."""
        if job.state in STOPPING:
            self._never(attempt, job, Outcome(EXIT_STOPPED, None, "stopped before it started"))
            return
        if not self._may_run(job):
            self._never(attempt, job, Outcome(None, Reason.NO_RESOURCES, UNISOLATED))
            return
        try:
            spec = prepare(self._store, self._settings, job, attempt, self._pipelines)
        except (RecipeError, Missing, NotFound) as error:
            self._never(attempt, job, Outcome(None, Reason.BAD_RECIPE, str(error)))
            return
        except OSError as error:
            self._never(attempt, job, Outcome(None, Reason.INTERNAL, f"the job's folder could not be prepared: {error}"))
            return
        try:
            for name in [name for name in job.request.secrets if name in spec.secrets]:
                self._store.record("secret.read", "secret", name, job.project, job=job.id, attempt=attempt.id)
            handle = self._executor.start(spec)
        except ExecutorError as error:
            self._never(attempt, job, Outcome(None, Reason.NODE_LOST, str(error)))
            return
        self._store.attempt_started(attempt.id, attempt.fencing, plain_record(handle.record))

    def _may_run(self, job: Job) -> bool:
        """Whether the job is isolated here, need not be, or is an admin's: the server that took it may have had another isolation."""
        if self._executor.isolation.kept or self._settings.isolation == "none":
            return True
        token = self._store.token_by_id(job.request.submitted_by)
        return token is not None and token.role == "admin"

    def _never(self, attempt: Attempt, job: Job, outcome: Outcome) -> None:
        """End an attempt that did not start; one that did after all is kept and looked at again."""
        handle = self._executor.reattach(record_of(self._settings.jobs, attempt))
        if handle is None:
            self._end(attempt, job, outcome)
            return
        self._store.attempt_started(attempt.id, attempt.fencing, plain_record(handle.record))

    def _follow(self, attempt: Attempt, job: Job, handle: Handle) -> None:
        intake = Intake(self._store, folders_of(self._settings.jobs, job), attempt, self._redactor_of(job))
        condition = self._executor.poll(handle)
        if isinstance(condition, Running):
            ends = job.state if job.state in STOPPING else self._limited(attempt, job, handle)
            if ends is not None and self._told.get(attempt.id) is not ends:
                self._told[attempt.id] = ends
                grace = self._settings.stop_seconds
                self._executor.stop(handle, min(CANCEL_SECONDS, grace) if job.state is State.CANCELLING else grace)
            intake.take(attempt.fencing)
        elif isinstance(condition, Lost):
            self._recover(attempt, job, handle, intake, condition)
        else:
            if self._errors.get(attempt.id, 0) >= MOST_ERRORS:  # it has ended and holds its place for nothing
                self._end(attempt, job, Outcome(condition.code or 1, Reason.INTERNAL, "what it left could not be taken in; the server's log says why"))
                return
            intake.take(attempt.fencing, batches=None)
            outcome = outcome_of(condition, intake.last_word(), self._console(attempt))
            if attempt.reason is not None and outcome.exit_code != EXIT_DONE:  # the service had it stopped
                outcome = Outcome(outcome.exit_code, attempt.reason, attempt.message)
            if outcome.exit_code == EXIT_DONE:
                outcome = self._publish(attempt, job) or outcome
            self._end(attempt, job, outcome)

    def _recover(self, attempt: Attempt, job: Job, handle: Handle, intake: Intake, lost: Lost) -> None:
        """Fence it, prove it dead, take in what it had written, and give the job back to the scheduler."""
        fencing = attempt.fencing
        if job.state not in STOPPING:
            fencing = self._store.fence(attempt.id, message=lost.why)
        if not self._executor.kill(handle, KILL_SECONDS):
            log.warning("attempt %s: %s; it could not be proven dead yet", attempt.id, lost.why)
            return
        intake.take(fencing, batches=None)
        self._end(attempt, job, Outcome(None, attempt.reason or Reason.NODE_LOST, attempt.message if attempt.reason else lost.why), fencing)

    def _limited(self, attempt: Attempt, job: Job, handle: Handle) -> Reason | None:
        """Why the service stops a running attempt, when it has been running or silent for too long."""
        if attempt.reason is not None:
            return attempt.reason
        now = time.time()
        if now - self._looked.get(attempt.id, 0.0) < LIMITS_SECONDS:
            return None
        self._looked[attempt.id] = now
        limit = None
        if limits.longest(job, self._settings) is not None:
            limit = limits.over_time(job, self._store.attempts(job.id), self._settings, now)
        record = Path(str(handle.record.get("record") or folders_of(self._settings.jobs, job).record(attempt.id)))
        limit = limit or limits.silent(attempt, folders_of(self._settings.jobs, job), record, self._settings, now)
        if limit is None:
            return None
        self._store.stop_attempt(attempt.id, attempt.fencing, limit.reason, limit.message)
        log.warning("attempt %s: %s", attempt.id, limit.message)
        return limit.reason

    def _publish(self, attempt: Attempt, job: Job) -> Outcome | None:
        """Give every publication its place and its row; what went wrong, when something did."""
        try:
            for found in publishing.publications(folders_of(self._settings.jobs, job)):
                if MODEL.fullmatch(found.name) is None or FINGERPRINT.fullmatch(found.fingerprint) is None:
                    return Outcome(EXIT_DONE + 1, Reason.BAD_RECIPE, "what lies in published/ is not what a publish stage writes")
                path = publishing.place(found, self._settings.models, job.project)
                self._store.publish_model(
                    attempt.id, attempt.fencing, name=found.name, fingerprint=found.fingerprint, path=str(path),
                    scores=plain_scores(found.scores), base=plain_text(found.base)[:500], parameters=plain_count(found.parameters), openai=dict(job.request.openai) or None,
                )  # fmt: skip
        except OSError as error:
            return Outcome(EXIT_DONE + 1, Reason.INTERNAL, f"the model could not be put into the registry: {error}")
        return None

    def _end(self, attempt: Attempt, job: Job, outcome: Outcome, fencing: int | None = None) -> None:
        delete_secrets(folders_of(self._settings.jobs, job).record(attempt.id), parts=True)
        take_over(self._settings, job)  # it is proven dead: what it finished serves the project
        message = self._redactor_of(job).text(outcome.message)
        reason, losses, stops = outcome.reason, 0, 0
        if reason is None and outcome.exit_code == EXIT_STOPPED and job.state is State.RECOVERING:
            reason = Reason.PREEMPTED
        if reason is Reason.NODE_LOST:
            losses = losses_in_a_row(self._store.attempts(job.id))
        elif reason is None and outcome.exit_code == EXIT_STOPPED:
            stops = stops_in_a_row(self._store.attempts(job.id))
        ending = ending_of(
            job, exit_code=outcome.exit_code, reason=reason, message=message, now=time.time(), losses=losses, stops=stops,
        )  # fmt: skip
        self._store.end_attempt(attempt.id, attempt.fencing if fencing is None else fencing, ending)

    def _redactor_of(self, job: Job) -> Redactor:
        """Takes out the server's secrets and those that the job was given."""
        given = [secret.value for secret in secrets_of(self._settings, job).values()] if job.request.secrets else []
        return Redactor((*of_environment(), *given)) if given else self._redactor

    def _abandon(self, attempt: Attempt) -> None:
        """Another server speaks for the job now: what this one still runs of it must not live."""
        record = attempt.handle or record_of(self._settings.jobs, attempt)
        handle = self._executor.reattach(record)
        if handle is not None and not isinstance(self._executor.poll(handle), Exited):
            log.warning("attempt %s was replaced by a later one; it is killed", attempt.id)
            self._executor.kill(handle, KILL_SECONDS)

    def _console(self, attempt: Attempt) -> str:
        record = attempt.handle.get("record")
        return tail(Path(str(record))) if record else ""
