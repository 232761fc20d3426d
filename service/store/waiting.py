"""What the scheduler reads: every job that waits or holds resources, without its recipe, and what changed since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import RowMapping, select

from service.jobs.resources import Placement, Resources
from service.jobs.states import ACTIVE, AttemptState, State
from service.store import tables
from service.store.database import Database, Transaction
from service.store.rows import placement_of

jobs = tables.jobs
COLUMNS = (
    "id", "project", "state", "priority", "resources", "depends_on", "deadline", "expected_seconds", "created", "updated", "not_before", "attempt",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """A job as the scheduler sees it."""

    id: str
    project: str
    state: State
    priority: int
    resources: Resources
    depends_on: tuple[str, ...]
    deadline: float | None
    expected_seconds: float | None
    created: float
    updated: float
    not_before: float
    attempt: str | None
    placement: Placement = ()
    """Where its attempt runs, when it holds resources."""
    began: float = 0.0
    """When that attempt was placed."""


class Queue(Database):
    """The part of the store that the scheduler reads."""

    def standing(self) -> list[Standing]:
        """All jobs that wait or hold resources, oldest first."""
        states = [str(state) for state in (State.QUEUED, *ACTIVE)]
        query = select(*(jobs.c[name] for name in COLUMNS)).where(jobs.c.state.in_(states)).order_by(jobs.c.id)
        return self.read(lambda transaction: self._standing(transaction, transaction.execute(query).mappings().all()))

    def changed_since(self, moment: float) -> list[Standing]:
        """All jobs, ended ones too, that changed at or after this time."""
        query = select(*(jobs.c[name] for name in COLUMNS)).where(jobs.c.updated >= moment).order_by(jobs.c.id)
        return self.read(lambda transaction: self._standing(transaction, transaction.execute(query).mappings().all()))

    def states_of(self, identifiers: Collection[str]) -> dict[str, State]:
        """The states of these jobs."""
        names = sorted(identifiers)
        found: dict[str, State] = {}
        for begin in range(0, len(names), 500):
            query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(names[begin : begin + 500]))
            found |= {row[0]: State(row[1]) for row in self.read(lambda transaction, query=query: transaction.execute(query).all())}  # type: ignore[misc]
        return found

    @staticmethod
    def _standing(transaction: Transaction, rows: Collection[RowMapping]) -> list[Standing]:
        attempts = tables.attempts
        placements: dict[str, tuple[Placement, float]] = {}
        if any(row["state"] in ACTIVE for row in rows):
            query = select(attempts.c.job, attempts.c.placement, attempts.c.created).where(attempts.c.state != AttemptState.ENDED)
            for job, placement, created in transaction.execute(query):
                placements[job] = (placement_of(placement), created)
        return [_standing(row, *placements.get(row["id"], ((), 0.0))) for row in rows]


def _standing(row: RowMapping, placement: Placement, began: float) -> Standing:
    state = State(row["state"])
    held = state in ACTIVE
    return Standing(
        **{name: row[name] for name in COLUMNS if name not in {"state", "resources", "depends_on"}},
        state=state,
        resources=Resources(**row["resources"]),
        depends_on=tuple(row["depends_on"]),
        placement=placement if held else (),
        began=began if held else 0.0,
    )
