"""Projects and their limits in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, insert, select, update

from service.store import tables
from service.store.audit import note
from service.store.changes import QUEUE
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.tables import now


@dataclass(frozen=True)
class Project:
    """Who shares a queue, files and models."""

    name: str
    weight: float = 1.0
    """Share of the hosts beside other projects that wait."""
    max_gpus: int | None = None
    """GPUs that its jobs may hold at once."""
    max_running: int | None = None
    """Jobs that may hold resources at once."""
    max_queued: int | None = None
    """Jobs that may wait at once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the API keeps for it, such as allow-listed remote code."""
    created: float = 0.0


def project_of(row: RowMapping) -> Project:
    return Project(**row)


def known_project(transaction: Transaction, name: str, lock: bool = False) -> Project:
    """The project, made when it is not there. Locked, it lets one submission with a key through at a time."""
    query = select(tables.projects).where(tables.projects.c.name == name)
    if lock and transaction.postgresql:
        query = query.with_for_update(key_share=True)
    row = transaction.execute(query).mappings().first()
    if row is None:
        values = {"name": name, "weight": 1.0, "settings": {}, "created": now()}
        made = insert(tables.projects).values(**values)
        if transaction.postgresql:
            from sqlalchemy.dialects.postgresql import insert as insert_unless

            made = insert_unless(tables.projects).values(**values).on_conflict_do_nothing()
        transaction.execute(made)
        row = transaction.execute(query).mappings().one()
    return project_of(row)


class ProjectQueries(Database):
    """The part of the store that holds projects."""

    def ensure_project(self, name: str) -> Project:
        """The project, made with weight 1 and no limits when it is not there."""
        return self.write(lambda transaction: known_project(transaction, name))

    def project(self, name: str) -> Project:
        """One project. Raises NotFound."""
        query = select(tables.projects).where(tables.projects.c.name == name)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        if row is None:
            raise NotFound("project", name)
        return project_of(row)

    def projects(self) -> list[Project]:
        """All of them, by name."""
        query = select(tables.projects).order_by(tables.projects.c.name)
        return self.read(lambda transaction: [project_of(row) for row in transaction.execute(query).mappings()])

    def set_project(self, name: str, **changes: Any) -> Project:
        """Change `weight`, `max_gpus`, `max_running`, `max_queued` or `settings` of a project, made when it is not
        there."""
        unknown = set(changes) - {"weight", "max_gpus", "max_running", "max_queued", "settings"}
        if unknown:
            raise TypeError(f"a project has no {', '.join(sorted(unknown))}")
        if changes.get("weight", 1) <= 0:
            raise ValueError(f"weight is {changes['weight']}, must be above 0")

        def work(transaction: Transaction) -> Project:
            known_project(transaction, name)
            if changes:
                transaction.execute(update(tables.projects).where(tables.projects.c.name == name).values(**changes))
            note(
                transaction,
                "project.set",
                "project",
                name,
                name,
                changed=[f"{key}={value}" for key, value in sorted(changes.items())],
            )
            transaction.topics.add(QUEUE)
            return known_project(transaction, name)

        return self.write(work)
