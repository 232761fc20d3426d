"""What each project keeps on the disk, and how much it may.

Uploaded files count by their rows, as soon as their bytes are reserved; evals and their runs by what the database keeps
of them. The rest is measured by `service.quotas`, one row for each job and model, and one for the finished stages and
the downloads of a project. A row goes with its job or model, so that what was deleted counts no longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, and_, cast, delete, func, insert, literal, or_, select, tuple_, union_all

from pipelines.core.pages import size
from service.jobs.states import ACTIVE, AttemptState
from service.store import tables
from service.store.database import Database, Transaction
from service.store.errors import DiskQuotaExceeded
from service.store.projects import Project
from service.store.tables import now

Kind = Literal["jobs", "models", "stages", "downloads"]
KINDS = ("files", "jobs", "models", "evals", "stages", "downloads")
usage = tables.disk_usage


@dataclass(frozen=True)
class DiskUsage:
    """What a project keeps on the disk, in bytes."""

    project: str
    files: int = 0
    """Uploads, those on their way included."""
    jobs: int = 0
    """Folders of jobs: run folders, checkpoints, logs."""
    models: int = 0
    """Published models."""
    evals: int = 0
    """Evals and their runs, with every row that a run holds."""
    stages: int = 0
    """Finished stages that later jobs can reuse."""
    downloads: int = 0
    """What its jobs took from the Hub."""
    limit: int | None = None
    """How much it may keep in all; None for no limit."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, kind) for kind in KINDS)

    @property
    def full(self) -> bool:
        """Whether nothing more may be added."""
        return self.limit is not None and self.total >= self.limit

    @property
    def sentence(self) -> str:
        """What is used, what is allowed, and what to do."""
        kinds = {kind: getattr(self, kind) for kind in KINDS}
        counted = [kind for kind in kinds if kinds[kind] > self.total / 100]
        largest = sorted(counted, key=lambda kind: -kinds[kind])
        parts = ", ".join(f"{kind} {size(kinds[kind])}" for kind in largest)
        return (
            f"project '{self.project}' keeps {size(self.total)} on the disk{f' ({parts})' if parts else ''}, and may "
            f"keep {size(self.limit)}; `finery project show` names the largest: delete jobs that have ended (`finery "
            "delete JOB`), files, models or evals, or ask an admin for more"
        )


@dataclass(frozen=True)
class KeptThing:
    """A file, job, model or eval, and the bytes that it takes."""

    kind: Literal["files", "jobs", "models", "evals"]
    id: str
    name: str
    bytes: int


def usage_within(transaction: Transaction, project: Project) -> DiskUsage:
    """What one project keeps now."""
    kinds = {row.kind: int(row.bytes) for row in transaction.execute(_sums(project.name))}
    return DiskUsage(project.name, **kinds, limit=project.max_bytes)


def refuse_full(transaction: Transaction, project: Project, more: int = 0) -> None:
    """Raise DiskQuotaExceeded where a project may not keep so many bytes more, or nothing at all."""
    if project.max_bytes is None:
        return
    kept = usage_within(transaction, project)
    if kept.full:
        raise DiskQuotaExceeded(kept.sentence)
    if kept.total + more > project.max_bytes:
        raise DiskQuotaExceeded(f"{size(more)} more do not fit: {kept.sentence}")


def forget_usage(transaction: Transaction, kind: Kind, thing: str) -> None:
    """A job or model is deleted: it no longer counts."""
    transaction.execute(delete(usage).where(usage.c.kind == kind, usage.c.thing == thing))


class DiskUsageQueries(Database):
    """The part of the store that knows what lies on the disk."""

    def disk_usage(self, name: str) -> DiskUsage:
        """What one project keeps. An unknown one keeps nothing and has no limit."""

        def work(transaction: Transaction) -> DiskUsage:
            query = select(tables.projects).where(tables.projects.c.name == name)
            row = transaction.execute(query).mappings().first()
            return DiskUsage(name) if row is None else usage_within(transaction, Project(**row))

        return self.read(work)

    def disk_usages(self) -> list[DiskUsage]:
        """What every project keeps, by name."""

        def work(transaction: Transaction) -> list[DiskUsage]:
            kinds: dict[str, dict[str, int]] = {}
            for row in transaction.execute(_sums()):
                kinds.setdefault(row.project, {})[row.kind] = int(row.bytes)
            projects = tables.projects
            limits = select(projects.c.name, projects.c.max_bytes).order_by(projects.c.name)
            return [DiskUsage(name, **kinds.get(name, {}), limit=most) for name, most in transaction.execute(limits)]

        return self.read(work)

    def largest(self, project: str, limit: int = 10) -> list[KeptThing]:
        """The files, jobs, models and evals of a project that take the most, largest first."""
        files, jobs, models = tables.files, tables.jobs, tables.models
        evals, runs = tables.evals, tables.eval_runs

        def measured(kind: str, table: Any) -> Any:
            mine = and_(usage.c.kind == kind, usage.c.thing == table.c.id, usage.c.project == project)
            return select(literal(kind).label("kind"), table.c.id, table.c.name, usage.c.bytes).join_from(
                usage, table, mine
            )

        uploads = select(literal("files").label("kind"), files.c.id, files.c.filename, files.c.reserved.label("bytes"))
        ran = select(func.coalesce(func.sum(runs.c.bytes), 0)).where(runs.c.eval == evals.c.id).scalar_subquery()
        whole = cast(evals.c.bytes + ran, BigInteger).label("bytes")
        everything = union_all(
            measured("jobs", jobs),
            measured("models", models),
            uploads.where(files.c.project == project),
            select(literal("evals").label("kind"), evals.c.id, evals.c.name, whole).where(evals.c.project == project),
        ).subquery()
        query = select(everything).where(everything.c.bytes > 0).order_by(everything.c.bytes.desc(), everything.c.id)
        return self.read(lambda transaction: [KeptThing(*row) for row in transaction.execute(query.limit(limit))])

    def job_bytes(self, job: str) -> int:
        """What the folder of a job took when it was last measured."""
        query = select(usage.c.bytes).where(usage.c.kind == "jobs", usage.c.thing == job)
        return self.read(lambda transaction: int(transaction.execute(query).scalar() or 0))

    def unmeasured_jobs(self, limit: int) -> list[tuple[str, str]]:
        """(project, job) of those that run, or that changed since they were measured; the longest unmeasured first."""
        jobs = tables.jobs
        same = and_(usage.c.kind == "jobs", usage.c.thing == jobs.c.id, usage.c.project == jobs.c.project)
        stale = or_(
            jobs.c.state.in_([str(state) for state in ACTIVE]),
            usage.c.measured.is_(None),
            usage.c.measured < jobs.c.updated,
        )
        query = (
            select(jobs.c.project, jobs.c.id)
            .join_from(jobs, usage, same, isouter=True)
            .where(jobs.c.attempts > 0, stale)
            .order_by(func.coalesce(usage.c.measured, 0.0))
            .limit(limit)
        )
        return self.read(lambda transaction: [(row[0], row[1]) for row in transaction.execute(query)])

    def unmeasured_models(self, limit: int) -> list[tuple[str, str, str]]:
        """(project, model, path) of those that were never measured: a model never changes."""
        models = tables.models
        same = and_(usage.c.kind == "models", usage.c.thing == models.c.id)
        query = (
            select(models.c.project, models.c.id, models.c.path)
            .join_from(models, usage, same, isouter=True)
            .where(usage.c.thing.is_(None))
            .limit(limit)
        )
        return self.read(lambda transaction: [(row[0], row[1], row[2]) for row in transaction.execute(query)])

    def measured_at(self, kind: Kind) -> dict[str, float]:
        """Project -> when its `stages` or `downloads` were last measured."""
        query = select(usage.c.project, usage.c.measured).where(usage.c.kind == kind)
        return self.read(lambda transaction: {row[0]: row[1] for row in transaction.execute(query)})

    def set_disk_usage(self, measured: Mapping[tuple[str, Kind, str], int], moment: float | None = None) -> None:
        """Keep what was measured, {(project, kind, thing): bytes}, all at once. `moment` is when measuring began.

        What was deleted meanwhile is left out.
        """
        moment = now() if moment is None else moment

        def work(transaction: Transaction) -> None:
            there = {
                kind: _existing(transaction, table, [thing for _, each, thing in measured if each == kind])
                for kind, table in (("jobs", tables.jobs), ("models", tables.models))
            }
            rows = [
                {"project": project, "kind": kind, "thing": thing, "bytes": count, "measured": moment}
                for (project, kind, thing), count in measured.items()
                if thing in there.get(kind, {""})
            ]
            for begin in range(0, len(rows), 200):
                part = rows[begin : begin + 200]
                keys = [(row["project"], row["kind"], row["thing"]) for row in part]
                transaction.execute(delete(usage).where(tuple_(usage.c.project, usage.c.kind, usage.c.thing).in_(keys)))
                transaction.execute(insert(usage), part)

        if measured:
            self.write(work)

    def idle_projects(self, names: Collection[str]) -> list[str]:
        """Those of these projects that have no live attempt."""
        attempts, jobs = tables.attempts, tables.jobs
        query = (
            select(jobs.c.project)
            .join_from(attempts, jobs, attempts.c.job == jobs.c.id)
            .where(attempts.c.state != AttemptState.ENDED)
            .distinct()
        )
        busy = self.read(lambda transaction: set(transaction.execute(query).scalars()))
        return [name for name in names if name not in busy]


def _sums(project: str | None = None) -> Any:
    """(project, kind, bytes), everything of one kind together; of all projects, or of one."""
    files, evals, runs = tables.files, tables.evals, tables.eval_runs
    kept = [
        select(table.c.project, kind.label("kind"), count.label("bytes")).where(
            literal(True) if project is None else table.c.project == project
        )
        for table, kind, count in (
            (usage, usage.c.kind, usage.c.bytes),
            (files, literal("files"), files.c.reserved),
            (evals, literal("evals"), evals.c.bytes),
            (runs, literal("evals"), runs.c.bytes),
        )
    ]
    rows = union_all(*kept).subquery()
    return select(rows.c.project, rows.c.kind, func.sum(rows.c.bytes).label("bytes")).group_by(
        rows.c.project, rows.c.kind
    )


def _existing(transaction: Transaction, table: Any, names: list[str]) -> set[str]:
    found: set[str] = set()
    for begin in range(0, len(names), 500):
        query = select(table.c.id).where(table.c.id.in_(names[begin : begin + 500]))
        found |= set(transaction.execute(query).scalars())
    return found
