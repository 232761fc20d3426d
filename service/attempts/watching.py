"""Watches every live attempt of one server: starts it, takes in what it writes, stops it, and says how it ended.

One thread asks the store what is live and hands each attempt to a small pool, one worker at a time per attempt. What is
done here can be done again: a server that was killed at any point goes on from the store's last word, because starting
is idempotent, ingesting is exactly once, publishing is idempotent, and an attempt ends once.

Three limits end an attempt that does not end by itself: the time that its job may run, the disk that its project may
take, and silence. A job's time is that of all its attempts since it was submitted or last retried by a user; what it
waits in the queue does not count. Of a project that keeps more than it may, the jobs end whose folders grew since; an
attempt is silent when for `stall_seconds` it printed nothing, wrote no event, and none of its ranks finished a step.
Then the rank whose process shows no sign of life is named, if there is one.

How an attempt ended follows from what the executor saw and what the run said last: a reason and a sentence.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.core.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USAGE, RecipeError
from pipelines.core.pages import size
from service.attempts import publishing
from service.attempts.environment import secrets_of
from service.attempts.folders import Folders, folders_of, record_of
from service.attempts.ingesting import Intake, plain_count, plain_record, plain_scores, plain_text
from service.attempts.preparing import PIPELINES, Missing, prepare
from service.attempts.stage_store import take_over
from service.executors.protocol import Executor, ExecutorError, Exited, Handle, Lost, Running
from service.executors.records import delete_secrets, tail
from service.jobs.job import Attempt, Job
from service.jobs.states import STOPPING, AttemptState, Reason, State
from service.safety.redaction import Redactor, of_environment
from service.scheduler.retries import ending_of, losses_in_a_row, stops_in_a_row
from service.settings import Settings
from service.store.errors import Fenced, NotFound, Unavailable
from service.store.store import Store

HEARTBEATS = "heartbeats"
"""In the run folder: `RANK` is touched every few seconds by a rank's process, `RANK.step` by its steps
(pipelines/runs/distributed.py)."""
ALIVE_SECONDS = 60.0
"""A process that was not heard of for so long while others were is the silent one."""


@dataclass(frozen=True)
class Limit:
    """Why an attempt is to be stopped."""

    reason: Reason
    message: str


def longest(job: Job, settings: Settings) -> float | None:
    """How many seconds a job may run: what it asked for, and no more than the server allows."""
    given = [each for each in (job.request.max_seconds, settings.max_seconds) if each is not None]
    return min(given, default=None)


def seconds_run(job: Job, attempts: Sequence[Attempt], now: float) -> float:
    """How long a job's attempts ran since it was submitted or retried."""
    counted = [each for each in attempts if each.number > job.attempts_before_retry and each.started is not None]
    return sum(max(0.0, (now if each.ended is None else each.ended) - (each.started or 0.0)) for each in counted)


def over_time(job: Job, attempts: Sequence[Attempt], settings: Settings, now: float) -> Limit | None:
    """The limit that a job has reached."""
    most = longest(job, settings)
    if most is None or seconds_run(job, attempts, now) < most:
        return None
    return Limit(
        Reason.TIME_LIMIT,
        f"it ran for the {most:g} s that it may run; its last checkpoint is kept, and a retry goes on from there",
    )


def silent(attempt: Attempt, folders: Folders, record: Path, settings: Settings, now: float) -> Limit | None:
    """Whether nothing was heard of an attempt for too long."""
    began = attempt.started or attempt.created
    if not settings.stall_seconds or now - began < settings.stall_seconds:
        return None
    beats = dict(_changed(folders.run / HEARTBEATS, began))
    signs = [
        began,
        *(moment for path, moment in beats.items() if path.suffix == ".step"),
        *(moment for _, moment in _changed(record / "console", began)),
    ]
    signs += [_moment(folders.events) or began]
    silence = now - max(min(sign, now) for sign in signs)
    if silence < settings.stall_seconds:
        return None
    alive = {path.name: moment for path, moment in beats.items() if path.name.isdecimal() and len(path.name) < 6}
    quiet = [
        rank
        for rank, moment in sorted(alive.items(), key=lambda each: each[1])
        if now - moment >= min(ALIVE_SECONDS, settings.stall_seconds)
    ]
    if quiet and len(quiet) < len(alive):
        who = (
            f"rank {quiet[0]} has been silent for {now - alive[quiet[0]]:.0f} s, and nothing moved for {silence:.0f} s"
        )
    else:
        who = f"it has been silent for {silence:.0f} s: no event, no output and no step"
    return Limit(Reason.STALLED, f"{who}; it is stopped (FINERY_STALL_SECONDS is {settings.stall_seconds:g})")


def _changed(folder: Path, since: float) -> Iterator[tuple[Path, float]]:
    """The files of a folder that were touched since then, and when."""
    try:
        with os.scandir(folder) as entries:
            files = [
                (Path(entry.path), entry.stat(follow_symlinks=False).st_mtime)
                for entry, _ in zip(entries, range(10_000), strict=False)
            ]
    except OSError:
        return
    yield from (each for each in files if each[1] >= since - 1.0)


def _moment(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


REASONS: dict[str, Reason] = {
    "bad_recipe": Reason.BAD_RECIPE,
    "misfit": Reason.BAD_RECIPE,
    "model_error": Reason.BAD_RECIPE,
    "publish_error": Reason.BAD_RECIPE,
    "data_error": Reason.DATA_ERROR,
    "diverged": Reason.DIVERGED,
    "out_of_memory": Reason.OUT_OF_MEMORY,
    "process_lost": Reason.NODE_LOST,
    "disk_full": Reason.INTERNAL,
    "busy": Reason.INTERNAL,
    "internal": Reason.INTERNAL,
}
"""The reason in a `failed` event (pipelines/core/errors.py) -> the job's. What the same recipe would meet again is
not tried again."""


@dataclass(frozen=True)
class AttemptOutcome:
    """What the store is told."""

    exit_code: int | None
    reason: Reason | None = None
    message: str = ""


def outcome_of(ended: Exited, last: Mapping[str, Any] | None, console: str) -> AttemptOutcome:
    """`last` is the attempt's newest `failed` or `stopped` event; `console` the end of what it printed."""
    if ended.code == EXIT_DONE:
        return AttemptOutcome(EXIT_DONE)
    said_nothing_better = ended.code < 0 or last is None or last.get("reason") in ("process_lost", "internal")
    if ended.reason == "out_of_memory" and said_nothing_better:
        return AttemptOutcome(
            ended.code, Reason.OUT_OF_MEMORY, "the kernel ended it because memory ran out; a smaller batch needs less"
        )
    if ended.code == EXIT_STOPPED or (ended.code < 0 and ended.asked):
        return AttemptOutcome(EXIT_STOPPED, None, "stopped; what was done is saved")
    if ended.code == EXIT_USAGE:
        return AttemptOutcome(EXIT_USAGE, Reason.BAD_RECIPE, last_sentence(console) or "the recipe was refused")
    if ended.code < 0:
        return AttemptOutcome(ended.code, *killed(-ended.code, console))
    if last is not None and last.get("event") == "failed":
        return AttemptOutcome(
            ended.code, REASONS.get(str(last.get("reason")), Reason.INTERNAL), str(last.get("message", ""))
        )
    return AttemptOutcome(
        ended.code,
        Reason.INTERNAL,
        last_sentence(console) or f"it ended with exit code {ended.code} and without a word",
    )


def killed(number: int, console: str) -> tuple[Reason, str]:
    """A signal that nobody here sent: SIGKILL and SIGTERM come from outside, the others from a library that crashed."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Reason.NODE_LOST, f"it was ended from outside by {name}"
    return Reason.INTERNAL, f"it crashed with {name}{': ' + last_sentence(console) if last_sentence(console) else ''}"


def last_sentence(console: str) -> str:
    """The last sentence that the command printed: its own, which begin with `finery: `, or else the last line."""
    lines = [line.rstrip().rpartition("\r")[2] for line in console.split("\n")]
    lines = [line for line in lines if line.strip()]
    own = [place for place, line in enumerate(lines) if line.startswith("finery: ")]
    if own:
        return "\n".join(lines[own[-1] :]).removeprefix("finery: ")[:2000]
    mistakes = [line for line in lines if ".yaml:" in line]
    return "\n".join(mistakes)[:4000] if mistakes else lines[-1][:500] if lines else ""


TICK = 0.25
"""Seconds between two looks when nobody wakes it."""
WORKERS = 8
GROWTH = 1 << 20
"""Bytes by which a job's folder grows before a full project's limit ends it: events and logs are no reason."""
KILL_SECONDS = 5.0
"""A worker waits so long for a tree to die, then lets others have their turn and looks again."""
CANCEL_SECONDS = 10.0
"""A cancelled attempt needs no checkpoint: it has less time than one that is paused."""
LIMITS_SECONDS = 1.0
"""How often an attempt's time and its signs of life are looked at."""
UNISOLATED = (
    "the server that was to start it cannot isolate jobs from itself; tell its operator (`finery doctor` says what "
    "is missing), then retry the job"
)
PATIENCE = 5.0
"""Seconds until an attempt whose look raised an error is looked at again."""
MOST_ERRORS = 10
"""So many looks in a row at an attempt may raise an error that nobody foresaw; then it ends, whatever it was doing. An
executor or a database that does not answer is foreseen: it is waited for."""
GIVEN_UP = "an error inside the server kept it from being started, followed or taken in; the server's log says why"
MODEL = re.compile(r"[A-Za-z0-9][\w.:@-]{0,199}", re.ASCII)
FINGERPRINT = re.compile(r"[0-9A-Za-z]{1,64}")
"""What a publish stage names its folder, and its state."""

log = logging.getLogger(__name__)


class Watcher:
    """The attempts whose leases this server holds."""

    def __init__(
        self, store: Store, settings: Settings, executor: Executor, holder: str, pipelines: Sequence[str] = PIPELINES
    ) -> None:
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
        self._sizes: dict[str, int] = {}
        """Bytes of the job's folder, as last measured while its project was not full."""
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
        for by_attempt in (self._busy, self._rest, self._told, self._errors, self._looked, self._sizes):
            for gone in by_attempt.keys() - {attempt.id for attempt, _ in live} - busy:
                del by_attempt[gone]
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
            if self._errors[attempt.id] >= MOST_ERRORS:
                self._give_up(attempt, job)

    def _give_up(self, attempt: Attempt, job: Job) -> None:
        """End an attempt at which every look raises an error: it holds its place for nothing. One that cannot be
        proven dead, or whose end cannot be written, is looked at again."""
        try:
            if not self._store.writable():  # the database may be what raised them, and an attempt needs none to go on
                return
            code = None
            started = attempt.state is not AttemptState.ASSIGNED
            record = record_of(self._settings.jobs, attempt)
            handle = self._handle(attempt) if started else self._executor.reattach(record)
            if handle is not None:
                condition = self._executor.poll(handle)
                if isinstance(condition, Exited):
                    code = condition.code or 1
                elif not self._executor.kill(handle, KILL_SECONDS):
                    log.warning("attempt %s: it is given up; it could not be proven dead yet", attempt.id)
                    return
            reason, message = attempt.reason or Reason.INTERNAL, attempt.message if attempt.reason else GIVEN_UP
            self._end(attempt, job, AttemptOutcome(code, reason, message), own_words=True)
        except Fenced:
            self._abandon(attempt)
        except (ExecutorError, Unavailable) as error:
            log.warning("attempt %s: %s", attempt.id, error)
        except Exception:
            log.exception("attempt %s could not be given up; trying again", attempt.id)

    def _handle(self, attempt: Attempt) -> Handle:
        return Handle(attempt.executor, attempt.id, int(attempt.handle["fencing_token"]), attempt.handle)

    def _begin(self, attempt: Attempt, job: Job) -> None:
        """Start an attempt, or find the one that a killed server started, or prove that it never will."""
        if job.state in STOPPING:
            self._never(attempt, job, AttemptOutcome(EXIT_STOPPED, None, "stopped before it started"))
            return
        if not self._may_run(job):
            self._never(attempt, job, AttemptOutcome(None, Reason.NO_RESOURCES, UNISOLATED))
            return
        if (usage := self._store.disk_usage(job.project)).full:
            self._never(attempt, job, AttemptOutcome(None, Reason.DISK_QUOTA, usage.sentence))
            return
        try:
            spec = prepare(self._store, self._settings, job, attempt, self._pipelines)
        except (RecipeError, Missing, NotFound) as error:
            self._never(attempt, job, AttemptOutcome(None, Reason.BAD_RECIPE, str(error)))
            return
        except OSError as error:
            self._never(
                attempt, job, AttemptOutcome(None, Reason.INTERNAL, f"the job's folder could not be prepared: {error}")
            )
            return
        try:
            for name in [name for name in job.request.secrets if name in spec.secrets]:
                self._store.record("secret.read", "secret", name, job.project, job=job.id, attempt=attempt.id)
            handle = self._executor.start(replace(spec, seconds=self._seconds_left(job)))
        except ExecutorError as error:
            self._never(attempt, job, AttemptOutcome(None, Reason.NODE_LOST, str(error)))
            return
        self._store.attempt_started(attempt.id, attempt.fencing, plain_record(handle.record))

    def _seconds_left(self, job: Job) -> float | None:
        """How long a job may go on running."""
        most = longest(job, self._settings)
        if most is None:
            return None
        return max(0.0, most - seconds_run(job, self._store.attempts(job.id), time.time()))

    def _may_run(self, job: Job) -> bool:
        """Whether the job is isolated here, need not be, or is an admin's: the server that took it may have had
        another isolation."""
        if self._executor.isolation.kept or self._settings.isolation == "none":
            return True
        token = self._store.token_by_id(job.request.submitted_by)
        return token is not None and token.role == "admin"

    def _never(self, attempt: Attempt, job: Job, outcome: AttemptOutcome) -> None:
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
            try:
                if ends is not None and self._told.get(attempt.id) is not ends:
                    grace = self._settings.stop_seconds
                    self._executor.stop(handle, min(CANCEL_SECONDS, grace) if job.state is State.CANCELLING else grace)
                    self._told[attempt.id] = ends  # only now: what could not be told is told again at the next look
            finally:
                intake.take(attempt.fencing)
        elif isinstance(condition, Lost):
            self._recover(attempt, job, handle, intake, condition)
        else:
            intake.take(attempt.fencing, batches=None)
            outcome = outcome_of(condition, intake.last_word(), self._console(attempt))
            if attempt.reason is not None and outcome.exit_code != EXIT_DONE:  # the service had it stopped
                outcome = AttemptOutcome(outcome.exit_code, attempt.reason, attempt.message)
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
        self._end(
            attempt,
            job,
            AttemptOutcome(None, attempt.reason or Reason.NODE_LOST, attempt.message if attempt.reason else lost.why),
            fencing,
        )

    def _limited(self, attempt: Attempt, job: Job, handle: Handle) -> Reason | None:
        """Why the service stops a running attempt, when it has been running or silent for too long."""
        if attempt.reason is not None:
            return attempt.reason
        now = time.time()
        if now - self._looked.get(attempt.id, 0.0) < LIMITS_SECONDS:
            return None
        self._looked[attempt.id] = now
        limit = None
        if longest(job, self._settings) is not None:
            limit = over_time(job, self._store.attempts(job.id), self._settings, now)
        limit = limit or self._over_quota(attempt, job)
        record = Path(str(handle.record.get("record") or folders_of(self._settings.jobs, job).record(attempt.id)))
        limit = limit or silent(attempt, folders_of(self._settings.jobs, job), record, self._settings, now)
        if limit is None:
            return None
        self._store.stop_attempt(attempt.id, attempt.fencing, limit.reason, limit.message)
        log.warning("attempt %s: %s", attempt.id, limit.message)
        return limit.reason

    def _over_quota(self, attempt: Attempt, job: Job) -> Limit | None:
        """The limit of a job whose folder grew since its project keeps as much on the disk as it may, or made it so."""
        usage = self._store.disk_usage(job.project)
        if usage.limit is None:
            return None
        now = self._store.job_bytes(job.id)
        if not usage.full:
            self._sizes[attempt.id] = now
            return None
        if now - self._sizes.setdefault(attempt.id, now) < GROWTH:
            return None
        return Limit(
            Reason.DISK_QUOTA,
            f"{usage.sentence}. This job's folder grew to {size(now)}; it is stopped, its last checkpoint is kept, and "
            "`finery retry` goes on from there when there is room",
        )

    def _publish(self, attempt: Attempt, job: Job) -> AttemptOutcome | None:
        """Give every publication its place and its row; what went wrong, when something did."""
        try:
            publications = list(publishing.publications(folders_of(self._settings.jobs, job)))
            if publications and (usage := self._store.disk_usage(job.project)).full:
                return AttemptOutcome(
                    EXIT_DONE + 1,
                    Reason.DISK_QUOTA,
                    f"{usage.sentence}. Nothing was published; `finery retry` does it when there is room",
                )
            for publication in publications:
                if MODEL.fullmatch(publication.name) is None or FINGERPRINT.fullmatch(publication.fingerprint) is None:
                    return AttemptOutcome(
                        EXIT_DONE + 1, Reason.BAD_RECIPE, "what lies in published/ is not what a publish stage writes"
                    )
                path = publishing.place(publication, self._settings.models, job.project)
                self._store.publish_model(
                    attempt.id,
                    attempt.fencing,
                    name=publication.name,
                    fingerprint=publication.fingerprint,
                    path=str(path),
                    scores=plain_scores(publication.scores),
                    base=plain_text(publication.base)[:500],
                    parameters=plain_count(publication.parameters),
                    openai=dict(job.request.openai) or None,
                )
                # a version that was deleted may have been swept away since its place was looked at
                publishing.place(publication, self._settings.models, job.project)
        except OSError as error:
            return AttemptOutcome(
                EXIT_DONE + 1, Reason.INTERNAL, f"the model could not be put into the registry: {error}"
            )
        return None

    def _end(
        self,
        attempt: Attempt,
        job: Job,
        outcome: AttemptOutcome,
        fencing: int | None = None,
        own_words: bool = False,
    ) -> None:
        """Write how an attempt ended that is proven dead; `own_words` are the service's, which hold no secret."""
        delete_secrets(folders_of(self._settings.jobs, job).record(attempt.id), parts=True)
        take_over(self._settings, job)  # it is proven dead: what it finished serves the project
        message = outcome.message if own_words else self._redactor_of(job).text(outcome.message)
        reason, losses, stops = outcome.reason, 0, 0
        if reason is None and outcome.exit_code == EXIT_STOPPED and job.state is State.RECOVERING:
            reason = Reason.PREEMPTED
        if reason is Reason.NODE_LOST:
            losses = losses_in_a_row(self._store.attempts(job.id))
        elif reason is None and outcome.exit_code == EXIT_STOPPED:
            stops = stops_in_a_row(self._store.attempts(job.id))
        ending = ending_of(
            job,
            exit_code=outcome.exit_code,
            reason=reason,
            message=message,
            now=time.time(),
            losses=losses,
            stops=stops,
        )
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
