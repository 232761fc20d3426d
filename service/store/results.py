"""Results in the store: finished stages, their scores, published models, and the leaderboard over them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, delete, func, insert, select, update

from pipelines.core.scores import smaller_is_better
from service.jobs.job import Job, new_id
from service.store import tables
from service.store.attempts import writer
from service.store.audit import note
from service.store.changes import JOBS, job_topic
from service.store.database import Database, Transaction
from service.store.disk_usage import forget_usage
from service.store.errors import NotFound
from service.store.jobs import of_project
from service.store.tables import now

LARGEST = 1e300
"""Scores are compared and drawn: a larger number is none."""
models = tables.models
scores = tables.scores


@dataclass(frozen=True)
class StageResult:
    """A complete stage of a job."""

    job: str
    stage: str
    attempt: str
    fingerprint: str
    seconds: float
    reused: bool
    metrics: Mapping[str, Any]
    finished: float


@dataclass(frozen=True)
class PublishedModel:
    """A published model."""

    id: str
    project: str
    name: str
    fingerprint: str
    job: str
    path: str
    base: str = ""
    """What it was made from."""
    parameters: int | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    """`{"glue/mrpc": {"f1": 0.9}}`, as in `metrics.json`."""
    openai: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True)
class StoredScore:
    """A line of the leaderboard: what one stage of a job scored."""

    project: str
    job: str
    job_name: str
    stage: str
    benchmark: str
    metric: str
    value: float
    created: float
    model: str | None
    """Name of the model that the job published, if it did."""


class ResultQueries(Database):
    """The part of the store that holds results."""

    def record_stage(
        self,
        attempt_id: str,
        fencing: int,
        stage: str,
        *,
        fingerprint: str = "",
        seconds: float = 0.0,
        reused: bool = False,
        metrics: Mapping[str, Any] | None = None,
        with_scores: bool = False,
    ) -> None:
        """Keep a finished stage; `with_scores` for an evaluate stage, whose metrics go to the leaderboard.

        Again for the same stage replaces what was there. Raises Fenced for an attempt that was replaced.
        """

        def work(transaction: Transaction) -> None:
            job, _ = writer(transaction, attempt_id, fencing)
            table = tables.stage_results
            values = {
                "attempt": attempt_id,
                "fingerprint": fingerprint,
                "seconds": seconds,
                "reused": reused,
                "metrics": dict(metrics or {}),
                "finished": now(),
            }
            mine = (table.c.job == job.id) & (table.c.stage == stage)
            if not transaction.execute(update(table).where(mine).values(**values)).rowcount:
                transaction.execute(insert(table).values(job=job.id, stage=stage, **values))
            if with_scores:
                write_scores(transaction, job, stage, metrics or {})
            transaction.topics |= {JOBS, job_topic(job.id)}

        self.write(work)

    def stage_results(self, job_id: str, project: str | None = None) -> list[StageResult]:
        """A job's finished stages in the order in which they finished. Raises NotFound for an unknown or foreign
        job."""
        table = tables.stage_results
        query = select(table).where(table.c.job == job_id).order_by(table.c.finished)

        def work(transaction: Transaction) -> list[StageResult]:
            if (
                transaction.execute(
                    of_project(select(tables.jobs.c.id).where(tables.jobs.c.id == job_id), project)
                ).first()
                is None
            ):
                raise NotFound("job", job_id)
            return [StageResult(**row) for row in transaction.execute(query).mappings()]

        return self.read(work)

    def publish_model(
        self,
        attempt_id: str,
        fencing: int,
        *,
        name: str,
        fingerprint: str,
        path: str,
        scores: Mapping[str, object] | None = None,
        base: str = "",
        parameters: int | None = None,
        openai: Mapping[str, object] | None = None,
    ) -> PublishedModel:
        """Publish a model once for each fingerprint of a name; a second call returns the first one's.

        Raises Fenced for an attempt that was replaced: two attempts never publish both.
        """

        def work(transaction: Transaction) -> PublishedModel:
            job, _ = writer(transaction, attempt_id, fencing)
            same = (models.c.project == job.project) & (models.c.name == name) & (models.c.fingerprint == fingerprint)
            row = transaction.execute(select(models).where(same)).mappings().first()
            if row is not None:
                return model_of(row)
            model = PublishedModel(
                new_id("model"),
                job.project,
                name,
                fingerprint,
                job.id,
                path,
                base,
                parameters,
                dict(scores or {}),
                dict(openai or {}),
                now(),
            )
            transaction.execute(insert(models).values(**vars(model)))
            note(
                transaction,
                "model.publish",
                "model",
                model.id,
                job.project,
                name=name,
                fingerprint=fingerprint,
                job=job.id,
            )
            transaction.topics |= {JOBS, job_topic(job.id)}
            return model

        return self.write(work)

    def model(self, project: str | None, name: str, fingerprint: str | None = None) -> PublishedModel:
        """The newest of this name, or the one with this fingerprint. Raises NotFound."""
        query = self._of(project).where(models.c.name == name).order_by(models.c.id.desc())
        if fingerprint is not None:
            query = query.where(models.c.fingerprint == fingerprint)
        return self._one_model(query, name)

    def model_by_id(self, model_id: str, project: str | None = None) -> PublishedModel:
        """One model. Raises NotFound."""
        return self._one_model(self._of(project).where(models.c.id == model_id), model_id)

    def models(
        self,
        project: str | None,
        *,
        name: str | None = None,
        job: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[PublishedModel]:
        """A page of models, newest first."""
        query = self._of(project).order_by(models.c.id.desc()).limit(limit)
        if name is not None:
            query = query.where(models.c.name == name)
        if job is not None:
            query = query.where(models.c.job == job)
        if after is not None:
            query = query.where(models.c.id < after)
        return self.read(lambda transaction: [model_of(row) for row in transaction.execute(query).mappings()])

    def delete_model(self, model_id: str, project: str | None = None) -> PublishedModel:
        """Forget a model and return what it was; its folder is the caller's to remove. Raises NotFound."""

        def work(transaction: Transaction) -> PublishedModel:
            row = transaction.execute(self._of(project).where(models.c.id == model_id)).mappings().first()
            if row is None:
                raise NotFound("model", model_id)
            forget_usage(transaction, "models", model_id)
            transaction.execute(delete(models).where(models.c.id == model_id))
            same = (models.c.project == row["project"]) & (models.c.name == row["name"])
            if transaction.execute(select(models.c.id).where(same)).first() is None:
                granted = tables.model_permissions  # a later model of that name is another one
                transaction.execute(
                    delete(granted).where(granted.c.owner == row["project"], granted.c.model == row["name"])
                )
            note(
                transaction,
                "model.delete",
                "model",
                model_id,
                row["project"],
                name=row["name"],
                fingerprint=row["fingerprint"],
            )
            return model_of(row)

        return self.write(work, repeatable=False)

    @staticmethod
    def _of(project: str | None) -> Any:
        query = select(models)
        return query if project is None else query.where(models.c.project == project)

    def _one_model(self, query: Any, identifier: str) -> PublishedModel:
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        if row is None:
            raise NotFound("model", identifier)
        return model_of(row)

    def benchmarks(self, project: str | None = None) -> list[tuple[str, str, int]]:
        """(benchmark, metric, number of scores) of all that was ever scored, by name."""
        query = select(scores.c.benchmark, scores.c.metric, func.count()).group_by(scores.c.benchmark, scores.c.metric)
        query = query.order_by(scores.c.benchmark, scores.c.metric)
        if project is not None:
            query = query.where(scores.c.project == project)
        return self.read(lambda transaction: [(row[0], row[1], int(row[2])) for row in transaction.execute(query)])

    def leaderboard(self, project: str | None, benchmark: str, metric: str, *, limit: int = 100) -> list[StoredScore]:
        """The scores on one benchmark, best first; between equals the earlier one."""
        published = select(func.max(models.c.name)).where(models.c.job == scores.c.job).scalar_subquery()
        query = (
            select(scores, tables.jobs.c.name.label("job_name"), published.label("model"))
            .join(tables.jobs, tables.jobs.c.id == scores.c.job)
            .where(scores.c.benchmark == benchmark, scores.c.metric == metric)
            .order_by(scores.c.value if smaller_is_better(metric) else scores.c.value.desc(), scores.c.created)
            .limit(limit)
        )
        if project is not None:
            query = query.where(scores.c.project == project)
        return self.read(lambda transaction: [StoredScore(**row) for row in transaction.execute(query).mappings()])

    def scores_of(self, jobs: Collection[str]) -> dict[str, dict[str, dict[str, float]]]:
        """`{job: {benchmark: {metric: value}}}` of these jobs."""
        query = select(scores).where(scores.c.job.in_(list(jobs))).order_by(scores.c.created)
        by_job: dict[str, dict[str, dict[str, float]]] = {}
        for row in self.read(lambda transaction: transaction.execute(query).mappings().all()):
            by_job.setdefault(row["job"], {}).setdefault(row["benchmark"], {})[row["metric"]] = row["value"]
        return by_job


def model_of(row: RowMapping) -> PublishedModel:
    return PublishedModel(**row)


def flat_scores(metrics: Mapping[str, object]) -> Iterator[tuple[str, str, float]]:
    """(benchmark, metric, value) of every finite number in an evaluate stage's metrics."""
    for benchmark, values in metrics.items():
        if not isinstance(values, Mapping):
            continue
        for metric, value in values.items():
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and abs(value) < LARGEST
                and math.isfinite(value)
            ):
                yield benchmark, metric, float(value)


def write_scores(transaction: Transaction, job: Job, stage: str, metrics: Mapping[str, object]) -> None:
    """Replace the scores of one evaluate stage."""
    transaction.execute(delete(scores).where(scores.c.job == job.id, scores.c.stage == stage))
    shared = {"job": job.id, "stage": stage, "project": job.project, "created": now()}
    rows = [
        {**shared, "benchmark": benchmark, "metric": metric, "value": value}
        for benchmark, metric, value in flat_scores(metrics)
    ]
    if rows:
        transaction.execute(insert(scores), rows)
