"""Published models in the store: versions of a name, aliases, deletion with a grace period, comparisons.

A model is named by a reference: `NAME` and `NAME@latest` are the newest version, `NAME@3` is a version, `NAME@best` the
one with the best score on the name's benchmark, and any other `NAME@ALIAS` what people have set, `production` first of
all. Every publication under a name is a version of it. Numbers are given once: that of a deleted version is not given
again, so that `NAME@3` never comes to mean something else. Look-ups see no version that is marked as deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Text, cast, delete, insert, or_, select, update
from sqlalchemy.engine import RowMapping

from pipelines.core.results import numbers
from pipelines.core.scores import better, is_score
from service.jobs.job import new_id
from service.jobs.states import TERMINAL
from service.safety.references import BEST, LATEST, PRODUCTION, VERSION, parsed
from service.store import tables
from service.store.attempts import writer
from service.store.audit import actor, note
from service.store.changes import JOBS, job_topic
from service.store.database import Database, Transaction
from service.store.errors import Conflict, NotFound
from service.store.tables import now

models = tables.models
aliases = tables.model_aliases
names = tables.model_names
comparisons = tables.model_comparisons

DAY = 86_400.0


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
            row = _name_row(transaction, job.project, name)
            same = (models.c.project == job.project) & (models.c.name == name) & (models.c.fingerprint == fingerprint)
            there = transaction.execute(select(models).where(same)).mappings().first()
            if there is not None:
                known = model_of(there)
                return known if known.deleted is None else _restored(transaction, known, "it was published again")
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
        return self.read(lambda transaction: _resolved(transaction, project, reference, fingerprint))

    def model_by_id(self, model_id: str, project: str | None = None, deleted: bool = False) -> PublishedModel:
        """One version; with `deleted` also one that is marked as such. Raises NotFound."""

        def work(transaction: Transaction) -> PublishedModel:
            query = _of(project, None if deleted else False).where(models.c.id == model_id)
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
        query = _of(project, deleted).order_by(models.c.id.desc()).limit(limit)
        for column, wanted in ((models.c.name, name), (models.c.job, job), (models.c.base, base)):
            if wanted is not None:
                query = query.where(column == wanted)
        if after is not None:
            query = query.where(models.c.id < after)
        return self.read(lambda transaction: [model_of(row) for row in transaction.execute(query).mappings()])

    def model_name(self, project: str, name: str) -> ModelName:
        """The aliases of a name, the automatic ones among them, and the score that `@best` goes by. Raises NotFound."""

        def work(transaction: Transaction) -> ModelName:
            versions = _versions(transaction, project, name)
            if not versions:
                raise NotFound("model", name)
            return _about(transaction, project, name, versions)

        return self.read(work)

    def model_names(self, listed: Collection[PublishedModel]) -> dict[tuple[str, str], ModelName]:
        """The same of every name among these models, by (project, name)."""

        def work(transaction: Transaction) -> dict[tuple[str, str], ModelName]:
            return {
                (project, name): _about(transaction, project, name, versions)
                for project, name in {(each.project, each.name) for each in listed}
                if (versions := _versions(transaction, project, name))
            }

        return self.read(work)

    # ---- aliases -----------------------------------------------------------------------------------------------------

    def set_alias(
        self,
        model_id: str,
        alias: str,
        project: str | None = None,
        *,
        expect: str | None = None,
        promotion: Mapping[str, object] | None = None,
    ) -> ModelName:
        """Have an alias name this version. A promotion is given with its figures, and with the version that it was
        tested against: Conflict where the alias names another one by now. Raises NotFound."""

        def work(transaction: Transaction) -> ModelName:
            model = _locked(transaction, model_id, project)
            mine = _alias_row(model, alias)
            before = transaction.execute(select(aliases.c.model).where(mine)).scalar()
            if promotion is not None and before != expect:
                raise Conflict(
                    f"'{model.name}@{alias}' was moved while the versions were compared; compare with what it names now"
                )
            if before != model.id:
                values = {"model": model.id, "set_by": actor().name, "set": now()}
                if not transaction.execute(update(aliases).where(mine).values(**values)).rowcount:
                    where = {"project": model.project, "name": model.name, "alias": alias}
                    transaction.execute(insert(aliases).values(**where, **values))
                note(
                    transaction,
                    "model.alias" if promotion is None else "model.promote",
                    "model",
                    model.id,
                    model.project,
                    name=model.name,
                    version=model.version,
                    alias=alias,
                    was=_version_of(transaction, before),
                    **(promotion or {}),
                )
            return _about(transaction, model.project, model.name)

        return self.write(work)

    def remove_alias(self, project: str, name: str, alias: str) -> ModelName:
        """Have an alias name nothing. Raises NotFound."""

        def work(transaction: Transaction) -> ModelName:
            mine = (aliases.c.project == project) & (aliases.c.name == name) & (aliases.c.alias == alias)
            before = transaction.execute(select(aliases.c.model).where(mine)).scalar()
            if before is None:
                raise NotFound("alias", f"{name}@{alias}")
            transaction.execute(delete(aliases).where(mine))
            was = _version_of(transaction, before)
            note(transaction, "model.unalias", "model", before, project, name=name, alias=alias, was=was)
            return _about(transaction, project, name)

        return self.write(work, repeatable=False)

    def set_benchmark(self, project: str, name: str, benchmark: str, metric: str) -> ModelName:
        """Name the score that `@best` goes by and promotions are tested on. Raises NotFound where no version has it."""

        def work(transaction: Transaction) -> ModelName:
            versions = _versions(transaction, project, name)
            if not versions:
                raise NotFound("model", name)
            if best_of(versions, benchmark, metric) is None:
                known = {f"{of}.{each}" for model in versions for of in model.scores for each in _metrics(model, of)}
                raise Conflict(
                    f"no version of '{name}' was scored on '{benchmark}.{metric}'; their scores: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )
            row = _name_row(transaction, project, name)
            if (row["benchmark"], row["metric"]) != (benchmark, metric):
                mine = (names.c.project == project) & (names.c.name == name)
                transaction.execute(update(names).where(mine).values(benchmark=benchmark, metric=metric))
                note(transaction, "model.benchmark", "model", name, project, benchmark=benchmark, metric=metric)
            return _about(transaction, project, name)

        return self.write(work)

    # ---- deletion ----------------------------------------------------------------------------------------------------

    def mark_deleted(self, model_id: str, project: str | None = None) -> PublishedModel:
        """Take a version out of sight until it is restored or purged. Raises NotFound, and Conflict while an alias
        names it or a job that lives uses it."""

        def work(transaction: Transaction) -> PublishedModel:
            model = _locked(transaction, model_id, project)
            holding = sorted(
                transaction.execute(select(aliases.c.alias).where(aliases.c.model == model.id)).scalars().all()
            )
            if holding:
                raise Conflict(
                    f"'{model.reference}' is what '{model.name}@{holding[0]}' names; promote another version, or "
                    "remove the alias, before it is deleted"
                )
            if (user := _user(transaction, model)) is not None:
                raise Conflict(f"'{model.reference}' is used by job '{user}', which has not ended; cancel it, or wait")
            moment = now()
            transaction.execute(update(models).where(models.c.id == model.id).values(deleted=moment))
            note(
                transaction,
                "model.delete",
                "model",
                model.id,
                model.project,
                name=model.name,
                version=model.version,
                fingerprint=model.fingerprint,
            )
            transaction.topics.add(JOBS)
            return model_of(transaction.execute(select(models).where(models.c.id == model.id)).mappings().one())

        return self.write(work, repeatable=False)

    def restore_model(self, project: str, reference: str) -> PublishedModel:
        """Bring a deleted version back: `NAME@3`, or the one of `NAME` that was deleted last. Raises NotFound."""

        def work(transaction: Transaction) -> PublishedModel:
            name, selector = parsed(reference)
            query = _of(project, True).where(or_(models.c.name == name, models.c.id == reference))
            query = query.order_by(models.c.deleted.desc(), models.c.id.desc())
            if selector:
                if VERSION.fullmatch(selector) is None:
                    raise NotFound("deleted model", reference)
                query = query.where(models.c.version == int(selector))
            row = transaction.execute(query).mappings().first()
            if row is None:
                raise NotFound("deleted model", reference)
            return _restored(transaction, model_of(row))

        return self.write(work, repeatable=False)

    def outlived_models(self, moment: float, days: float, limit: int = 100) -> list[PublishedModel]:
        """Versions whose time to be restored is over, and that no job uses."""
        query = _of(None, True).where(models.c.deleted + days * DAY <= moment).order_by(models.c.deleted).limit(limit)

        def work(transaction: Transaction) -> list[PublishedModel]:
            rows = [model_of(row) for row in transaction.execute(query).mappings()]
            return [each for each in rows if _user(transaction, each) is None]

        return self.read(work)

    def purge_model(self, model_id: str, deleted: float | None) -> bool:
        """Forget a version that is still marked as it was when it was looked at; whether it was."""

        def work(transaction: Transaction) -> bool:
            row = transaction.execute(select(models).where(models.c.id == model_id)).mappings().first()
            if row is None or row["deleted"] is None or row["deleted"] != deleted:
                return False
            transaction.execute(
                delete(comparisons).where(or_(comparisons.c.model == model_id, comparisons.c.against == model_id))
            )
            transaction.execute(delete(models).where(models.c.id == model_id))
            note(
                transaction,
                "model.purge",
                "model",
                model_id,
                row["project"],
                name=row["name"],
                version=row["version"],
                fingerprint=row["fingerprint"],
            )
            return True

        return self.write(work, repeatable=False)

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def comparison(self, model: str, against: str) -> Mapping[str, Any] | None:
        """What was found when these two versions were compared; None where they never were."""
        query = select(comparisons.c.document).where(comparisons.c.model == model, comparisons.c.against == against)
        return self.read(lambda transaction: transaction.execute(query).scalar())

    def keep_comparison(self, model: str, against: str, document: Mapping[str, object]) -> None:
        """Keep what was found: versions do not change, so neither does it."""

        def work(transaction: Transaction) -> None:
            there = select(models.c.id).where(models.c.id.in_([model, against]))
            mine = (comparisons.c.model == model) & (comparisons.c.against == against)
            if (
                len(transaction.execute(there).all()) < 2
                or transaction.execute(select(comparisons).where(mine)).first()
            ):
                return
            values = {"model": model, "against": against, "document": dict(document), "created": now()}
            made = insert(comparisons).values(**values)
            if transaction.postgresql:
                from sqlalchemy.dialects.postgresql import insert as insert_unless

                made = insert_unless(comparisons).values(**values).on_conflict_do_nothing()
            transaction.execute(made)

        self.write(work)


def model_of(row: RowMapping) -> PublishedModel:
    return PublishedModel(**row)


def _of(project: str | None, deleted: bool | None) -> Any:
    query = select(models)
    if deleted is not None:
        query = query.where(models.c.deleted.is_not(None) if deleted else models.c.deleted.is_(None))
    return query if project is None else query.where(models.c.project == project)


def _resolved(
    transaction: Transaction, project: str | None, reference: str, fingerprint: str | None = None
) -> PublishedModel:
    name, selector = parsed(reference)
    query = _of(project, False).where(models.c.name == name).order_by(models.c.id.desc())
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
        raise NotFound("model", reference)
    return model_of(row)


def _named(transaction: Transaction, project: str, name: str, selector: str) -> PublishedModel | None:
    if selector == BEST:
        versions = _versions(transaction, project, name)
        return best_of(versions, *_score(_name_of(transaction, project, name), versions))
    query = select(models).join(aliases, aliases.c.model == models.c.id)
    query = query.where(aliases.c.project == project, aliases.c.name == name, aliases.c.alias == selector)
    row = transaction.execute(query.where(models.c.deleted.is_(None))).mappings().first()
    return None if row is None else model_of(row)


def _known(transaction: Transaction, project: str, name: str) -> str:
    about = _about(transaction, project, name)
    versions = ", ".join(str(each.version) for each in _versions(transaction, project, name)[:10])
    return f"its aliases: {', '.join(each.alias for each in about.aliases)}; its versions: {versions}"


def _versions(transaction: Transaction, project: str, name: str) -> list[PublishedModel]:
    """Newest first."""
    query = _of(project, False).where(models.c.name == name).order_by(models.c.version.desc())
    return [model_of(row) for row in transaction.execute(query).mappings()]


def _about(
    transaction: Transaction, project: str, name: str, versions: Sequence[PublishedModel] | None = None
) -> ModelName:
    versions = _versions(transaction, project, name) if versions is None else versions
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


def _metrics(model: PublishedModel, benchmark: str) -> list[str]:
    return [each for each in numbers(model.scores.get(benchmark)) if is_score(each)]


def _name_of(transaction: Transaction, project: str, name: str) -> RowMapping | None:
    query = select(names).where(names.c.project == project, names.c.name == name)
    return transaction.execute(query).mappings().first()


def _name_row(transaction: Transaction, project: str, name: str) -> RowMapping:
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


def _locked(transaction: Transaction, model_id: str, project: str | None) -> PublishedModel:
    """The version, kept from others until the commit. Raises NotFound."""
    query = _of(project, False).where(models.c.id == model_id)
    query = query.with_for_update() if transaction.postgresql else query
    row = transaction.execute(query).mappings().first()
    if row is None:
        raise NotFound("model", model_id)
    return model_of(row)


def _alias_row(model: PublishedModel, alias: str) -> Any:
    return (aliases.c.project == model.project) & (aliases.c.name == model.name) & (aliases.c.alias == alias)


def _version_of(transaction: Transaction, model_id: str | None) -> int | None:
    return transaction.execute(select(models.c.version).where(models.c.id == model_id)).scalar()


def _user(transaction: Transaction, model: PublishedModel) -> str | None:
    """A job that has not ended and uses the version."""
    jobs = tables.jobs
    living = jobs.c.state.not_in([str(state) for state in TERMINAL])
    query = select(jobs.c.id).where(
        living, jobs.c.project == model.project, cast(jobs.c.models, Text).contains(f'"{model.id}"')
    )
    return transaction.execute(query.limit(1)).scalar()


def _restored(transaction: Transaction, model: PublishedModel, why: str | None = None) -> PublishedModel:
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
