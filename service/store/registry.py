"""The registry's part of the store: aliases, the score of a name, deletion with a grace period, comparisons.

What people do to versions that are published. Each change and its row of the audit trail are one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Text, cast, delete, insert, or_, select, update

from pipelines.core.results import numbers
from pipelines.core.scores import is_score
from service.jobs.states import TERMINAL
from service.safety.references import VERSION, parsed
from service.store import tables
from service.store.audit import actor, note
from service.store.changes import JOBS
from service.store.database import Database, Transaction
from service.store.disk_usage import forget_usage
from service.store.errors import Conflict, NotFound
from service.store.models import (
    ModelName,
    PublishedModel,
    about_name,
    best_of,
    forget_permissions,
    model_of,
    models_of,
    name_row,
    restored,
    versions_of,
)
from service.store.tables import now

models = tables.models
aliases = tables.model_aliases
names = tables.model_names
comparisons = tables.model_comparisons
DAY = 86_400.0


class RegistryQueries(Database):
    """The part of the store that holds what belongs to the names of models."""

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
            name_row(transaction, model.project, model.name)  # one at a time moves the aliases of a name
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
            return about_name(transaction, model.project, model.name)

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
            return about_name(transaction, project, name)

        return self.write(work, repeatable=False)

    def set_benchmark(self, project: str, name: str, benchmark: str, metric: str) -> ModelName:
        """Name the score that `@best` goes by and promotions are tested on. Raises NotFound where no version has it."""

        def work(transaction: Transaction) -> ModelName:
            versions = versions_of(transaction, project, name)
            if not versions:
                raise NotFound("model", name)
            if best_of(versions, benchmark, metric) is None:
                known = {f"{of}.{each}" for model in versions for of in model.scores for each in _metrics(model, of)}
                raise Conflict(
                    f"no version of '{name}' was scored on '{benchmark}.{metric}'; their scores: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )
            row = name_row(transaction, project, name)
            if (row["benchmark"], row["metric"]) != (benchmark, metric):
                mine = (names.c.project == project) & (names.c.name == name)
                transaction.execute(update(names).where(mine).values(benchmark=benchmark, metric=metric))
                note(transaction, "model.benchmark", "model", name, project, benchmark=benchmark, metric=metric)
            return about_name(transaction, project, name)

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
            query = models_of(project, True).where(or_(models.c.name == name, models.c.id == reference))
            query = query.order_by(models.c.deleted.desc(), models.c.id.desc())
            if selector:
                if VERSION.fullmatch(selector) is None:
                    raise NotFound("deleted model", reference)
                query = query.where(models.c.version == int(selector))
            row = transaction.execute(query).mappings().first()
            if row is None:
                raise NotFound("deleted model", reference)
            return restored(transaction, model_of(row))

        return self.write(work, repeatable=False)

    def outlived_models(self, moment: float, days: float, limit: int = 100) -> list[PublishedModel]:
        """Versions whose time to be restored is over, and that no job uses."""
        query = (
            models_of(None, True).where(models.c.deleted + days * DAY <= moment).order_by(models.c.deleted).limit(limit)
        )

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
            forget_usage(transaction, "models", model_id)
            transaction.execute(delete(models).where(models.c.id == model_id))
            forget_permissions(transaction, row["project"], row["name"], None)
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


def _locked(transaction: Transaction, model_id: str, project: str | None) -> PublishedModel:
    """The version, kept from others until the commit. Raises NotFound."""
    query = models_of(project, False).where(models.c.id == model_id)
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


def _metrics(model: PublishedModel, benchmark: str) -> list[str]:
    return [each for each in numbers(model.scores.get(benchmark)) if is_score(each)]
