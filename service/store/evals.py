"""Evals in the store: what is measured and by which graders, their runs, and the rows of each run.

A run holds its own rows from the moment when it is made, so that the file behind it may go. What a row came to and the
run's counts are written in one transaction, once for each row: after a crash a run goes on with the rows that are
still waiting, and counts none twice. What is kept counts for the project's quota on the disk, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, delete, func, insert, select, tuple_, update

from service.jobs.job import new_id
from service.store import tables
from service.store.audit import actor, note
from service.store.database import Database, Transaction, plain_json
from service.store.disk_usage import refuse_full
from service.store.errors import Conflict, NotFound, QuotaExceeded
from service.store.projects import known_project
from service.store.tables import now

evals, runs, items = tables.evals, tables.eval_runs, tables.eval_items
QUEUED, RUNNING, COMPLETED, CANCELED, FAILED = "queued", "in_progress", "completed", "canceled", "failed"
OPEN = (QUEUED, RUNNING)
WAITING, PASSED, FAILED_ITEM, ERRORED = "waiting", "pass", "fail", "error"
MOST_OPEN = 20
"""Runs of a project that wait or run."""
BATCH = 500
"""Rows that are inserted at once."""
BESIDE = 256
"""Bytes that a row takes beside its JSON: its keys, its state, what the indexes hold of it."""


@dataclass(frozen=True)
class Eval:
    """What is measured."""

    id: str
    project: str
    name: str
    data_source_config: Mapping[str, Any]
    testing_criteria: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, str]
    created_by: str = ""
    created: float = 0.0
    updated: float = 0.0
    bytes: int = 0
    """That the database keeps of it, without its runs."""


@dataclass(frozen=True)
class EvalRun:
    """One measurement."""

    id: str
    eval: str
    project: str
    name: str
    state: str
    data_source: Mapping[str, Any]
    metadata: Mapping[str, str]
    model: str
    summary: Mapping[str, Any]
    error: Mapping[str, Any]
    items: int
    created_by: str = ""
    role: str = ""
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    bytes: int = 0
    """That the database keeps of it, with its rows and what they came to."""


@dataclass(frozen=True)
class EvalItem:
    """One row of a run."""

    run: str
    number: int
    item: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    state: str = WAITING
    sample: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[Mapping[str, Any]] = ()
    done: float | None = None


def bytes_of(*values: object) -> int:
    """What a row with these values takes in the database."""
    return BESIDE + sum(len(plain_json(each)) for each in values)


def eval_of(row: RowMapping) -> Eval:
    return Eval(**row)


def run_of(row: RowMapping) -> EvalRun:
    return EvalRun(**row)


def item_of(row: RowMapping) -> EvalItem:
    return EvalItem(**row)


class EvalQueries(Database):
    """The part of the store that holds evals."""

    def add_eval(
        self,
        project: str,
        name: str,
        config: Mapping[str, Any],
        criteria: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, str],
    ) -> Eval:
        """Keep a new eval. Raises DiskQuotaExceeded."""
        moment = now()
        made = Eval(
            new_id("eval"),
            project,
            name,
            dict(config),
            list(criteria),
            dict(metadata),
            actor().name,
            moment,
            moment,
            bytes_of(config, criteria, metadata),
        )

        def work(transaction: Transaction) -> Eval:
            owner = known_project(transaction, project, lock=True)
            if transaction.execute(select(evals.c.id).where(evals.c.id == made.id)).first() is None:
                refuse_full(transaction, owner, made.bytes)
                transaction.execute(insert(evals).values(**vars(made)))
                note(transaction, "eval.create", "eval", made.id, project, name=name)
            return made

        return self.write(work)

    def eval(self, eval_id: str, project: str | None) -> Eval:
        """One eval. Raises NotFound."""
        return self.read(lambda transaction: eval_of(_eval(transaction, eval_id, project)))

    def evals(
        self,
        project: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = False,
        by: str = "created",
    ) -> list[Eval]:
        """A page of evals, by when they were made or changed."""
        column = evals.c[by]
        query = select(evals).limit(limit)
        if project is not None:
            query = query.where(evals.c.project == project)
        order = (column.desc(), evals.c.id.desc()) if newest_first else (column, evals.c.id)

        def work(transaction: Transaction) -> list[Eval]:
            page = query
            if after is not None:
                mark = transaction.execute(select(column, evals.c.id).where(evals.c.id == after)).first()
                if mark is None:
                    return []
                here = tuple_(column, evals.c.id)
                page = page.where(here < tuple(mark) if newest_first else here > tuple(mark))
            return [eval_of(row) for row in transaction.execute(page.order_by(*order)).mappings()]

        return self.read(work)

    def update_eval(
        self, eval_id: str, project: str | None, name: str | None, metadata: Mapping[str, str] | None
    ) -> Eval:
        """Give an eval another name, or other metadata. Raises NotFound."""
        values: dict[str, Any] = {"updated": now()}
        if name is not None:
            values["name"] = name
        if metadata is not None:
            values["metadata"] = dict(metadata)

        def work(transaction: Transaction) -> Eval:
            found = eval_of(_eval(transaction, eval_id, project))
            if metadata is not None:
                values["bytes"] = bytes_of(found.data_source_config, found.testing_criteria, metadata)
            transaction.execute(update(evals).where(evals.c.id == eval_id).values(**values))
            note(transaction, "eval.update", "eval", eval_id, project, name=name)
            return eval_of(_eval(transaction, eval_id, project))

        return self.write(work)

    def delete_eval(self, eval_id: str, project: str | None) -> Eval:
        """Forget an eval with its runs. Raises NotFound."""

        def work(transaction: Transaction) -> Eval:
            found = eval_of(_eval(transaction, eval_id, project))
            mine = select(runs.c.id).where(runs.c.eval == eval_id)
            transaction.execute(delete(items).where(items.c.run.in_(mine)))
            transaction.execute(delete(runs).where(runs.c.eval == eval_id))
            transaction.execute(delete(evals).where(evals.c.id == eval_id))
            note(transaction, "eval.delete", "eval", eval_id, found.project, name=found.name)
            return found

        return self.write(work, repeatable=False)

    # ---- runs --------------------------------------------------------------------------------------------------------

    def add_run(
        self,
        of: Eval,
        name: str,
        data_source: Mapping[str, Any],
        metadata: Mapping[str, str],
        model: str,
        rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
        role: str,
    ) -> EvalRun:
        """Keep a new run with its rows: (item, the answer that it brings). Raises QuotaExceeded, DiskQuotaExceeded, or
        NotFound where the eval is gone."""
        made = EvalRun(
            new_id("evalrun"),
            of.id,
            of.project,
            name,
            QUEUED,
            dict(data_source),
            dict(metadata),
            model,
            summary_of(of),
            {},
            len(rows),
            actor().name,
            role,
            now(),
            bytes=bytes_of(data_source, metadata) + sum(bytes_of(item, given, {}, []) for item, given in rows),
        )

        def work(transaction: Transaction) -> EvalRun:
            owner = known_project(transaction, of.project, lock=True)
            _eval(transaction, of.id, of.project)
            if transaction.execute(select(runs.c.id).where(runs.c.id == made.id)).first() is not None:
                return made
            waiting = select(func.count()).where(runs.c.project == of.project, runs.c.state.in_(OPEN))
            if (count := int(transaction.execute(waiting).scalar_one())) >= MOST_OPEN:
                raise QuotaExceeded(f"{count} runs of evals of this project wait or run; wait until some are over")
            refuse_full(transaction, owner, made.bytes)
            transaction.execute(insert(runs).values(**vars(made)))
            for start in range(0, len(rows), BATCH):
                values: list[dict[str, Any]] = [
                    {
                        "run": made.id,
                        "number": number,
                        "state": WAITING,
                        "item": dict(item),
                        "given": dict(given),
                        "sample": {},
                        "results": [],
                        "done": None,
                    }
                    for number, (item, given) in enumerate(rows[start : start + BATCH], start=start)
                ]
                transaction.execute(insert(items), values)
            note(transaction, "eval.run", "evalrun", made.id, of.project, eval=of.id, model=model or None)
            return made

        return self.write(work)

    def run(self, run_id: str, eval_id: str, project: str | None) -> EvalRun:
        """One run. Raises NotFound."""
        return self.read(lambda transaction: run_of(_run(transaction, run_id, eval_id, project)))

    def runs(
        self,
        eval_id: str,
        project: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = False,
        state: str | None = None,
    ) -> list[EvalRun]:
        """A page of an eval's runs. Raises NotFound."""
        query = select(runs).where(runs.c.eval == eval_id).limit(limit)
        query = query.order_by(runs.c.id.desc() if newest_first else runs.c.id)
        if after is not None:
            query = query.where(runs.c.id < after if newest_first else runs.c.id > after)
        if state is not None:
            query = query.where(runs.c.state == state)

        def work(transaction: Transaction) -> list[EvalRun]:
            _eval(transaction, eval_id, project)
            return [run_of(row) for row in transaction.execute(query).mappings()]

        return self.read(work)

    def open_runs(self) -> list[EvalRun]:
        """Every run that waits or runs, oldest first."""
        query = select(runs).where(runs.c.state.in_(OPEN)).order_by(runs.c.id)
        return self.read(lambda transaction: [run_of(row) for row in transaction.execute(query).mappings()])

    def begin_run(self, run_id: str) -> bool:
        """Say that a run is at work; False where it is over."""
        here = (runs.c.id == run_id) & runs.c.state.in_(OPEN)
        query = update(runs).where(here).values(state=RUNNING, started=func.coalesce(runs.c.started, now()))
        return self.write(lambda transaction: bool(transaction.execute(query).rowcount))

    def end_run(self, run_id: str, state: str, error: Mapping[str, Any] | None = None) -> bool:
        """Say how a run ended; False where it was over already."""
        here = (runs.c.id == run_id) & runs.c.state.in_(OPEN)
        query = update(runs).where(here).values(state=state, finished=now(), error=dict(error or {}))
        return self.write(lambda transaction: bool(transaction.execute(query).rowcount))

    def cancel_run(self, run_id: str, eval_id: str, project: str | None) -> EvalRun:
        """Stop a run for good; what it measured stays. Raises NotFound, or Conflict where it is over."""

        def work(transaction: Transaction) -> EvalRun:
            row = _run(transaction, run_id, eval_id, project)
            if row["state"] == CANCELED:
                return run_of(row)
            if row["state"] not in OPEN:
                raise Conflict(f"run '{run_id}' is {row['state']}, so it cannot be cancelled")
            transaction.execute(update(runs).where(runs.c.id == run_id).values(state=CANCELED, finished=now()))
            note(transaction, "eval.cancel", "evalrun", run_id, row["project"], eval=eval_id)
            return run_of(_run(transaction, run_id, eval_id, project))

        return self.write(work)

    def delete_run(self, run_id: str, eval_id: str, project: str | None) -> EvalRun:
        """Forget a run. Raises NotFound."""

        def work(transaction: Transaction) -> EvalRun:
            found = run_of(_run(transaction, run_id, eval_id, project))
            transaction.execute(delete(items).where(items.c.run == run_id))
            transaction.execute(delete(runs).where(runs.c.id == run_id))
            note(transaction, "eval.delete", "evalrun", run_id, found.project, eval=eval_id)
            return found

        return self.write(work, repeatable=False)

    # ---- rows of a run -----------------------------------------------------------------------------------------------

    def eval_items(
        self,
        run_id: str,
        *,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
        states: Sequence[str] = (),
    ) -> list[EvalItem]:
        """A page of a run's rows, in their order."""
        query = select(items).where(items.c.run == run_id).limit(limit)
        query = query.order_by(items.c.number.desc() if newest_first else items.c.number)
        if after is not None:
            query = query.where(items.c.number < after if newest_first else items.c.number > after)
        if states:
            query = query.where(items.c.state.in_(list(states)))
        return self.read(lambda transaction: [item_of(row) for row in transaction.execute(query).mappings()])

    def every_eval_item(self, run_id: str) -> Iterator[EvalItem]:
        """All rows that are done, in their order."""
        after = -1
        while page := self.eval_items(run_id, after=after, limit=BATCH, states=(PASSED, FAILED_ITEM, ERRORED)):
            after = page[-1].number
            yield from page

    def eval_item(self, run_id: str, number: int) -> EvalItem:
        """One row. Raises NotFound."""
        query = select(items).where(items.c.run == run_id, items.c.number == number)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        if row is None:
            raise NotFound("output item", f"{run_id}-{number}")
        return item_of(row)

    def finish_item(
        self,
        run_id: str,
        number: int,
        state: str,
        sample: Mapping[str, Any],
        results: Sequence[Mapping[str, Any]],
        usage: Mapping[str, Mapping[str, int]],
    ) -> bool:
        """Keep what a row came to, and count it; False where the run is over or the row was done already."""
        more = len(plain_json(sample)) + len(plain_json(results))

        def work(transaction: Transaction) -> bool:
            query = select(runs.c.state, runs.c.summary).where(runs.c.id == run_id)
            row = transaction.execute(query.with_for_update() if transaction.postgresql else query).mappings().first()
            if row is None or row["state"] not in OPEN:
                return False
            waiting = (items.c.run == run_id) & (items.c.number == number) & (items.c.state == WAITING)
            values = {"state": state, "sample": dict(sample), "results": list(results), "done": now()}
            if not transaction.execute(update(items).where(waiting).values(**values)).rowcount:
                return False
            summary = counted(row["summary"], state, results, usage)
            values = {"summary": summary, "bytes": runs.c.bytes + more}
            transaction.execute(update(runs).where(runs.c.id == run_id).values(**values))
            return True

        return self.write(work)


def summary_of(of: Eval) -> dict[str, Any]:
    """The counts of a run of which nothing is done."""
    names = [str(each["name"]) for each in of.testing_criteria]
    return {
        "counts": {PASSED: 0, FAILED_ITEM: 0, ERRORED: 0},
        "criteria": {name: {"passed": 0, "failed": 0} for name in names},
        "usage": {},
    }


def counted(
    summary: Mapping[str, Any], state: str, results: Sequence[Mapping[str, Any]], usage: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """The counts with one row more."""
    counts = {**summary["counts"], state: summary["counts"].get(state, 0) + 1}
    criteria = {name: dict(each) for name, each in summary["criteria"].items()}
    for result in results:
        of = criteria.setdefault(str(result["name"]), {"passed": 0, "failed": 0})
        of["passed" if result["passed"] else "failed"] += 1
    models = {name: dict(each) for name, each in summary["usage"].items()}
    for name, each in usage.items():
        of = models.setdefault(name, dict.fromkeys(each, 0))
        for key, value in each.items():
            of[key] = of.get(key, 0) + value
    return {"counts": counts, "criteria": criteria, "usage": models}


def _eval(transaction: Transaction, eval_id: str, project: str | None) -> RowMapping:
    query = select(evals).where(evals.c.id == eval_id)
    if project is not None:
        query = query.where(evals.c.project == project)
    row = transaction.execute(query).mappings().first()
    if row is None:
        raise NotFound("eval", eval_id)
    return row


def _run(transaction: Transaction, run_id: str, eval_id: str, project: str | None) -> RowMapping:
    query = select(runs).where(runs.c.id == run_id, runs.c.eval == eval_id)
    if project is not None:
        query = query.where(runs.c.project == project)
    row = transaction.execute(query).mappings().first()
    if row is None:
        raise NotFound("run", run_id)
    return row
