"""The audit trail: who did what to which thing and from where, written in the same transaction as the change.

Who acts is known at the door (a request's token, the command line, else the server itself) and written down deep in
the store. Between the two it travels in a context variable, so that no function of the store can be called without a
trace because somebody forgot to hand the actor on. The holder is one object for each request: threads that serve the
request share it.

Rows are only ever added: no function here changes one, the database refuses an UPDATE (migration 0004), and the one
deletion is by age.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from sqlalchemy import delete, insert, select

from service.jobs.job import new_id
from service.store import tables
from service.store.database import Database, Transaction
from service.store.tables import now

Action = Literal[
    "job.submit",
    "job.cancel",
    "job.pause",
    "job.resume",
    "job.retry",
    "job.priority",
    "job.delete",
    "file.create",
    "file.complete",
    "file.delete",
    "model.publish",
    "model.delete",
    "permission.create",
    "permission.delete",
    "eval.create",
    "eval.update",
    "eval.delete",
    "eval.run",
    "eval.cancel",
    "secret.put",
    "secret.delete",
    "secret.bind",
    "secret.unbind",
    "secret.read",
    "token.create",
    "token.revoke",
    "project.set",
    "host.state",
    "login",
    "logout",
    "login.failed",
    "backup.create",
    "backup.restore",
]
ACTIONS: tuple[Action, ...] = get_args(Action)
SERVER = "finery"
"""The actor where no request and no command is behind it."""
LONGEST = 500
"""Characters of a text in a row; what is longer is cut."""
MOST_FAILURES = 60
"""Rows of `login.failed` that one server writes in an hour, beside one for each address and hour; the rest is
counted in the next row."""
FAILURE_SECONDS = 3600.0
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would begin a new line, steer a terminal or turn the direction of writing."""
Result = TypeVar("Result")
audit = tables.audit


@dataclass
class Actor:
    """Who acts. One for each request: who it is becomes known while the request is served."""

    name: str = SERVER
    """Id of a token; `finery` for the server itself, `console` for a command on the server's machine; empty for
    nobody known."""
    role: str = ""
    project: str = ""
    scope: MutableMapping[str, Any] = field(default_factory=dict)
    """Of the request: its address and its id are read when a row is written."""

    @property
    def address(self) -> str:
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    @property
    def request(self) -> str:
        state = self.scope.get("state") or {}
        identifier = state.get("request_id") if isinstance(state, Mapping) else getattr(state, "request_id", None)
        return str(identifier or "")


_acting: ContextVar[Actor | None] = ContextVar("finery_actor", default=None)


def actor() -> Actor:
    """Who acts here and now."""
    return _acting.get() or Actor()


@contextmanager
def acting(who: Actor) -> Iterator[Actor]:
    """What is written inside is written as done by `who`."""
    token = _acting.set(who)
    try:
        yield who
    finally:
        _acting.reset(token)


def identify(name: str, role: str, project: str, scope: MutableMapping[str, object] | None = None) -> None:
    """The request that is being served comes from this token. Does nothing outside a request."""
    who = _acting.get()
    if who is not None:
        who.name, who.role, who.project = name, role, project
        if scope is not None:
            who.scope = scope


def note(transaction: Transaction, action: Action, kind: str, thing: str, project: str | None, **details: Any) -> None:
    """Write what is done in this transaction, so that both are there or neither is. Details are facts, never
    values of secrets."""
    who = actor()
    row = {
        "id": new_id("audit"),
        "time": now(),
        "action": action,
        "actor": plain(who.name),
        "role": plain(who.role),
        "actor_project": plain(who.project),
        "address": plain(who.address),
        "request": plain(who.request),
        "kind": kind,
        "thing": plain(thing),
        "project": None if project is None else plain(project),
        "details": {key: plain(value) for key, value in details.items() if value is not None},
    }
    transaction.execute(insert(audit).values(**row))


def plain(value: object) -> Any:
    """A value that stands in one line of a list: texts without control characters and not too long."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value[:50]]
    text = str(value)
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


@dataclass(frozen=True)
class AuditEntry:
    """A row of the trail."""

    id: str
    time: float
    action: str
    actor: str
    role: str
    actor_project: str
    address: str
    request: str
    kind: str
    thing: str
    project: str | None
    details: Mapping[str, Any]


class AuditQueries(Database):
    """The part of the store that holds the audit trail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._failures: dict[str, tuple[float, int]] = {}
        """Address -> (when its last row was written, how many failed since); under the empty address, the same of
        all."""
        self._failures_lock = threading.Lock()
        self._unwritten = 0

    def record(
        self,
        action: Action,
        kind: str,
        thing: str,
        project: str | None,
        *,
        doing: Callable[[], Result] | None = None,
        **details: Any,
    ) -> Result | None:
        """Write a row for what is done outside the database, `doing`, between the row and its commit: what raises
        leaves no row.

        Should the commit fail after it, the caller is told so, and doing it again writes the row: `doing` must bear
        that.
        """

        def work(transaction: Transaction) -> Result | None:
            note(transaction, action, kind, thing, project, **details)
            return None if doing is None else doing()

        return self.write(work)

    def login_failed(self, address: str, prefix: str = "") -> bool:
        """Write that a wrong token came, at most once an hour for each address and MOST_FAILURES times in all;
        whether it was written.

        Whoever sends wrong tokens can therefore neither fill the disk nor push what matters out of sight.
        """
        moment = time.monotonic()
        with self._failures_lock:
            failures = self._failures
            for stale in [each for each, (last, _) in failures.items() if moment - last > FAILURE_SECONDS]:
                if stale != "":
                    del failures[stale]
            begun, written = failures.get("", (moment, 0))
            if moment - begun > FAILURE_SECONDS:
                begun, written = moment, 0
            last = failures.get(address or "?")
            if last is not None or written >= MOST_FAILURES:
                if last is not None:
                    failures[address or "?"] = (last[0], last[1] + 1)
                self._unwritten += 1
                return False
            failures[address or "?"] = (moment, 0)
            failures[""] = (begun, written + 1)
            more, self._unwritten = self._unwritten, 0
        self.record("login.failed", "token", prefix or "unknown", None, others_since_last_row=more)
        return True

    def audit(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        project: str | None = None,
        thing: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """A page of the trail, newest first. The next page is the one `after` the last id of this one."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        for column, wanted in (
            (audit.c.action, action),
            (audit.c.actor, actor),
            (audit.c.project, project),
            (audit.c.thing, thing),
        ):
            if wanted is not None:
                query = query.where(column == wanted)
        if since is not None:
            query = query.where(audit.c.time >= since)
        if until is not None:
            query = query.where(audit.c.time < until)
        if after is not None:
            query = query.where(audit.c.id < after)
        return self.read(lambda transaction: [AuditEntry(**row) for row in transaction.execute(query).mappings()])

    def forget_audit(self, before: float) -> int:
        """Delete rows that are older than this; returns how many. The one deletion there is."""
        query = delete(audit).where(audit.c.time < before)
        return self.write(lambda transaction: int(transaction.execute(query).rowcount))
