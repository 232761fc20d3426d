"""Published models in the store: every publication under a name is a version of it, and references name versions.

A model is named by a reference: `NAME` and `NAME@latest` are the newest version, `NAME@3` is a version, `NAME@best` the
one with the best score on the name's benchmark, and any other `NAME@ALIAS` what people have set, `production` first of
all. Numbers are given once: that of a deleted version is not given again, so that `NAME@3` never comes to mean
something else. Look-ups see no version that is marked as deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.engine import RowMapping

from pipelines.core.results import numbers
from pipelines.core.scores import better, is_score
from service.jobs.job import new_id
from service.safety.references import BEST, LATEST, PRODUCTION, VERSION, parsed
from service.store import tables
from service.store.attempts import writer
from service.store.audit import note
from service.store.changes import JOBS, job_topic
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.tables import now

models = tables.models
aliases = tables.model_aliases
names = tables.model_names


@dataclass(frozen=True)
class PublishedModel:
    """One version of a published model."""

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
    version: int = 1
    deleted: float | None = None
    """When it was marked as deleted."""

    @property
    def reference(self) -> str:
        """`NAME@3`, which never means another version."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class ModelAlias:
    """What an alias of a name stands for."""

    alias: str
    version: int
    model: str
    """Id of the version."""
    set_by: str = ""
    """The token that set it; empty for what sets itself."""
    set: float | None = None


@dataclass(frozen=True)
class ModelName:
    """What belongs to a name rather than to one version."""

    project: str
    name: str
    benchmark: str = ""
    """`glue/mrpc`"""
    metric: str = ""
    """`f1`: `@best` is the version with the best of it, and promotions are tested on it."""
    aliases: tuple[ModelAlias, ...] = ()


def split_score(score: str) -> tuple[str, str]:
    """(benchmark, metric) of `glue/mrpc.f1`; the metric is empty where only the benchmark is named."""
    benchmark, dot, metric = score.rpartition(".")
    return (benchmark, metric) if dot else (score, "")


def score_of(model: PublishedModel, benchmark: str, metric: str) -> float | None:
    """What a version scored; None where it was not scored on this."""
    return numbers(model.scores.get(benchmark)).get(metric)


def main_score(model: PublishedModel) -> tuple[str, str]:
    """(benchmark, metric) to compare a version by: the first score of its first benchmark; empty without one."""
    for benchmark, values in model.scores.items():
        for metric in numbers(values):
            if is_score(metric):
                return benchmark, metric
    return "", ""


def best_of(versions: Iterable[PublishedModel], benchmark: str, metric: str) -> PublishedModel | None:
    """The version with the best score, of equal ones the earliest; None where none has it."""
    best: tuple[float, PublishedModel] | None = None
    for model in sorted(versions, key=lambda each: each.version):
        value = score_of(model, benchmark, metric)
        if value is not None and (best is None or better(metric, value, best[0])):
            best = value, model
    return None if best is None else best[1]


class ModelQueries(Database):
    """The part of the store that holds published models."""

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
        """Publish the next version of a name; the same fingerprint again is the version that it already is, which
        comes back where it was deleted.

        Raises Fenced for an attempt that was replaced: two attempts never publish both.
        """

        def work(transaction: Transaction) -> PublishedModel:
            job, _ = writer(transaction, attempt_id, fencing)
            row = name_row(transaction, job.project, name)
            same = (models.c.project == job.project) & (models.c.name == name) & (models.c.fingerprint == fingerprint)
            there = transaction.execute(select(models).where(same)).mappings().first()
            if there is not None:
                known = model_of(there)
                return known if known.deleted is None else restored(transaction, known, "it was published again")
            forget_permissions(transaction, job.project, name, False)  # another model than those that are deleted
            version = row["last_version"] + 1
            mine = (names.c.project == job.project) & (names.c.name == name)
            transaction.execute(update(names).where(mine).values(last_version=version))
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
                version,
            )
            transaction.execute(insert(models).values(**vars(model)))
            note(
                transaction,
                "model.publish",
                "model",
                model.id,
                job.project,
                name=name,
                version=version,
                fingerprint=fingerprint,
                job=job.id,
            )
            transaction.topics |= {JOBS, job_topic(job.id)}
            return model

        return self.write(work)

    # ---- looking up --------------------------------------------------------------------------------------------------

    def model(self, project: str | None, reference: str, fingerprint: str | None = None) -> PublishedModel:
        """What a reference stands for now, or the version of the name with this fingerprint. Raises NotFound."""
        return self.read(lambda transaction: resolved(transaction, project, reference, fingerprint))

    def model_by_id(self, model_id: str, project: str | None = None, deleted: bool = False) -> PublishedModel:
        """One version; with `deleted` also one that is marked as such. Raises NotFound."""

        def work(transaction: Transaction) -> PublishedModel:
            query = models_of(project, None if deleted else False).where(models.c.id == model_id)
            row = transaction.execute(query).mappings().first()
            if row is None:
                raise NotFound("model", model_id)
            return model_of(row)

        return self.read(work)

    def models(
        self,
        project: str | None,
        *,
        name: str | None = None,
        job: str | None = None,
        base: str | None = None,
        after: str | None = None,
        deleted: bool = False,
        limit: int = 100,
    ) -> list[PublishedModel]:
        """A page of versions, newest first; with `deleted` those alone that can still be restored."""
        query = models_of(project, deleted).order_by(models.c.id.desc()).limit(limit)
        for column, wanted in ((models.c.name, name), (models.c.job, job), (models.c.base, base)):
            if wanted is not None:
                query = query.where(column == wanted)
        if after is not None:
            query = query.where(models.c.id < after)
        return self.read(lambda transaction: [model_of(row) for row in transaction.execute(query).mappings()])

    def model_name(self, project: str, name: str) -> ModelName:
        """The aliases of a name, the automatic ones among them, and the score that `@best` goes by. Raises NotFound."""

        def work(transaction: Transaction) -> ModelName:
            versions = versions_of(transaction, project, name)
            if not versions:
                raise NotFound("model", name)
            return about_name(transaction, project, name, versions)

        return self.read(work)

    def model_names(self, listed: Collection[PublishedModel]) -> dict[tuple[str, str], ModelName]:
        """The same of every name among these models, by (project, name)."""

        def work(transaction: Transaction) -> dict[tuple[str, str], ModelName]:
            return {
                (project, name): about_name(transaction, project, name, versions)
                for project, name in {(each.project, each.name) for each in listed}
                if (versions := versions_of(transaction, project, name))
            }

        return self.read(work)


def model_of(row: RowMapping) -> PublishedModel:
    return PublishedModel(**row)


def models_of(project: str | None, deleted: bool | None) -> Any:
    """The versions of a project, those that are deleted or those that are not; None for all."""
    query = select(models)
    if deleted is not None:
        query = query.where(models.c.deleted.is_not(None) if deleted else models.c.deleted.is_(None))
    return query if project is None else query.where(models.c.project == project)


def resolved(
    transaction: Transaction, project: str | None, reference: str, fingerprint: str | None = None
) -> PublishedModel:
    """What a reference stands for now. Raises NotFound."""
    name, selector = parsed(reference)
    query = models_of(project, False).where(models.c.name == name).order_by(models.c.id.desc())
    if fingerprint is not None:
        query = query.where(models.c.fingerprint == fingerprint)
    if VERSION.fullmatch(selector):
        query = query.where(models.c.version == int(selector))
    elif selector not in ("", LATEST):
        newest = transaction.execute(query.limit(1)).mappings().first()
        if newest is None:
            raise NotFound("model", name)
        model = _named(transaction, newest["project"], name, selector)
        if model is None or (fingerprint is not None and model.fingerprint != fingerprint):
            raise NotFound("model", reference, _known(transaction, newest["project"], name))
        return model
    row = transaction.execute(query.limit(1)).mappings().first()
    if row is None:
        named = models_of(project, False).where(models.c.name == name).order_by(models.c.id.desc()).limit(10)
        known = [each["fingerprint"] for each in transaction.execute(named).mappings()]
        if fingerprint is None or not known or fingerprint in known:
            raise NotFound("model", reference)
        what = f"version of '{name}' with the fingerprint"
        raise NotFound(what, fingerprint, f"its versions have {', '.join(known)}")
    return model_of(row)


def _named(transaction: Transaction, project: str, name: str, selector: str) -> PublishedModel | None:
    if selector == BEST:
        versions = versions_of(transaction, project, name)
        return best_of(versions, *_score(_name_of(transaction, project, name), versions))
    query = select(models).join(aliases, aliases.c.model == models.c.id)
    query = query.where(aliases.c.project == project, aliases.c.name == name, aliases.c.alias == selector)
    row = transaction.execute(query.where(models.c.deleted.is_(None))).mappings().first()
    return None if row is None else model_of(row)


def _known(transaction: Transaction, project: str, name: str) -> str:
    about = about_name(transaction, project, name)
    versions = ", ".join(str(each.version) for each in versions_of(transaction, project, name)[:10])
    return f"its aliases: {', '.join(each.alias for each in about.aliases)}; its versions: {versions}"


def versions_of(transaction: Transaction, project: str, name: str) -> list[PublishedModel]:
    """The versions of a name, newest first."""
    query = models_of(project, False).where(models.c.name == name).order_by(models.c.version.desc())
    return [model_of(row) for row in transaction.execute(query).mappings()]


def about_name(
    transaction: Transaction, project: str, name: str, versions: Sequence[PublishedModel] | None = None
) -> ModelName:
    versions = versions_of(transaction, project, name) if versions is None else versions
    benchmark, metric = _score(_name_of(transaction, project, name), versions)
    found = [ModelAlias(LATEST, versions[0].version, versions[0].id)] if versions else []
    if (best := best_of(versions, benchmark, metric)) is not None:
        found.append(ModelAlias(BEST, best.version, best.id))
    query = select(aliases, models.c.version).join(models, models.c.id == aliases.c.model)
    query = query.where(aliases.c.project == project, aliases.c.name == name).order_by(aliases.c.alias)
    rows = transaction.execute(query).mappings().all()
    rows = sorted(rows, key=lambda row: row["alias"] != PRODUCTION)
    found += [ModelAlias(row["alias"], row["version"], row["model"], row["set_by"], row["set"]) for row in rows]
    return ModelName(project, name, benchmark, metric, tuple(found))


def _score(row: RowMapping | None, versions: Sequence[PublishedModel]) -> tuple[str, str]:
    """The score that was named, else the main one of the newest version that has any."""
    if row is not None and row["benchmark"]:
        return row["benchmark"], row["metric"]
    return next((main for each in versions if (main := main_score(each))[0]), ("", ""))


def _name_of(transaction: Transaction, project: str, name: str) -> RowMapping | None:
    query = select(names).where(names.c.project == project, names.c.name == name)
    return transaction.execute(query).mappings().first()


def name_row(transaction: Transaction, project: str, name: str) -> RowMapping:
    """The name's row, made where it is not there, kept from others until the commit."""
    query = select(names).where(names.c.project == project, names.c.name == name)
    values = {"project": project, "name": name, "last_version": 0, "benchmark": "", "metric": ""}
    if transaction.postgresql:
        from sqlalchemy.dialects.postgresql import insert as insert_unless

        transaction.execute(insert_unless(names).values(**values).on_conflict_do_nothing())
        query = query.with_for_update()
    elif transaction.execute(query).first() is None:
        transaction.execute(insert(names).values(**values))
    return transaction.execute(query).mappings().one()


def forget_permissions(transaction: Transaction, project: str, name: str, deleted: bool | None) -> None:
    """Take back who else may ask a name of which there are no versions, `deleted` as `models_of` takes it."""
    if transaction.execute(models_of(project, deleted).where(models.c.name == name)).first() is None:
        granted = tables.model_permissions
        transaction.execute(delete(granted).where(granted.c.owner == project, granted.c.model == name))


def restored(transaction: Transaction, model: PublishedModel, why: str | None = None) -> PublishedModel:
    transaction.execute(update(models).where(models.c.id == model.id).values(deleted=None))
    note(
        transaction,
        "model.restore",
        "model",
        model.id,
        model.project,
        name=model.name,
        version=model.version,
        fingerprint=model.fingerprint,
        why=why,
    )
    transaction.topics.add(JOBS)
    return model_of(transaction.execute(select(models).where(models.c.id == model.id)).mappings().one())
