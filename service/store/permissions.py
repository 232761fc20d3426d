"""Permissions in the store: which other projects may ask a project's model.

A permission is for a name, whatever is published under it later. While every model of the name is marked as deleted it
lets nobody ask. It is back when one is restored, and gone when the last is purged, or another model takes the name
before. The models of one's own project come first: nobody can put another in their place by granting one of the same
name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, delete, insert, select

from service.jobs.job import new_id
from service.safety.references import parsed
from service.store import tables
from service.store.audit import actor, note
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.models import PublishedModel, model_of, models, resolved
from service.store.tables import now

granted = tables.model_permissions


@dataclass(frozen=True)
class Permission:
    """One project may ask one model of another."""

    id: str
    owner: str
    """Whose model it is."""
    model: str
    project: str
    """Who may ask it."""
    created_by: str = ""
    created: float = 0.0


def permission_of(row: RowMapping) -> Permission:
    return Permission(**row)


class PermissionQueries(Database):
    """The part of the store that holds permissions."""

    def grant(self, owner: str, model: str, projects: Sequence[str]) -> list[Permission]:
        """Let projects ask the model; one that may already keeps its permission. Raises NotFound for a project or a
        model that is not there: then none is granted."""

        def work(transaction: Transaction) -> list[Permission]:
            named = select(models.c.id).where(models.c.project == owner, models.c.name == model)
            named = named.where(models.c.deleted.is_(None))
            if transaction.execute(named).first() is None:
                raise NotFound("model", model)
            made = []
            for project in dict.fromkeys(projects):
                known = select(tables.projects.c.name).where(tables.projects.c.name == project)
                if transaction.execute(known).first() is None:
                    raise NotFound("project", project)
                mine = (granted.c.owner == owner) & (granted.c.model == model) & (granted.c.project == project)
                row = transaction.execute(select(granted).where(mine)).mappings().first()
                if row is not None:
                    made.append(permission_of(row))
                    continue
                fresh = Permission(new_id("cp"), owner, model, project, actor().name, now())
                transaction.execute(insert(granted).values(**vars(fresh)))
                note(transaction, "permission.create", "permission", fresh.id, owner, model=model, to=project)
                made.append(fresh)
            return made

        return self.write(work)

    def permissions(
        self,
        owner: str,
        model: str,
        *,
        project: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[Permission]:
        """A page of a model's permissions."""
        query = select(granted).where(granted.c.owner == owner, granted.c.model == model).limit(limit)
        query = query.order_by(granted.c.id.desc() if newest_first else granted.c.id)
        if project is not None:
            query = query.where(granted.c.project == project)
        if after is not None:
            query = query.where(granted.c.id < after if newest_first else granted.c.id > after)
        return self.read(lambda transaction: [permission_of(row) for row in transaction.execute(query).mappings()])

    def revoke(self, permission_id: str, owner: str, model: str) -> Permission:
        """Take a permission back. Raises NotFound."""
        mine = (granted.c.id == permission_id) & (granted.c.owner == owner) & (granted.c.model == model)

        def work(transaction: Transaction) -> Permission:
            row = transaction.execute(select(granted).where(mine)).mappings().first()
            if row is None:
                raise NotFound("permission", permission_id)
            transaction.execute(delete(granted).where(mine))
            note(transaction, "permission.delete", "permission", permission_id, owner, model=model, to=row["project"])
            return permission_of(row)

        return self.write(work, repeatable=False)

    def granted_models(self, project: str, name: str | None = None) -> list[PublishedModel]:
        """The models of other projects that this one may ask, newest first; of a reference what it names there."""
        plain, selector = parsed(name or "")
        joined = (granted.c.owner == models.c.project) & (granted.c.model == models.c.name)
        query: Any = (
            select(models)
            .join(granted, joined)
            .where(granted.c.project == project, models.c.deleted.is_(None))
            .order_by(models.c.id.desc())
        )
        if name is not None:
            query = query.where(models.c.name == plain).limit(1)

        def work(transaction: Transaction) -> list[PublishedModel]:
            found = [model_of(row) for row in transaction.execute(query).mappings()]
            if not selector or name is None:
                return found
            try:
                return [resolved(transaction, each.project, name) for each in found]
            except NotFound:
                return []

        return self.read(work)
