"""Leases in the store: who may act for what until when, with fencing tokens that only ever grow.

A process that was paused for a minute may wake up and write as if nothing had happened. Each holder therefore gets a
number higher than every one before, writes it with every change, and is refused when a later number was given
(Kleppmann 2016, "How to do distributed locking", martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
"""

from __future__ import annotations

from sqlalchemy import insert, select, update

from service.jobs.job import Lease
from service.store import tables
from service.store.database import Database, Transaction
from service.store.errors import Conflict
from service.store.rows import lease_of, now
from service.store.writing import locked

leases = tables.leases


def take(transaction: Transaction, name: str, holder: str, expires: float, attempt: str | None = None) -> int:
    """Give the lease to `holder` under the next fencing token, whoever had it; returns the token."""
    row = transaction.execute(locked(select(leases.c.fencing).where(leases.c.name == name), transaction)).first()
    if row is None:
        transaction.execute(insert(leases).values(name=name, holder=holder, fencing=1, expires=expires, attempt=attempt))
        return 1
    token = int(row.fencing) + 1
    values = {"holder": holder, "fencing": token, "expires": expires, "attempt": attempt}
    transaction.execute(update(leases).where(leases.c.name == name).values(**values))
    return token


def drop(transaction: Transaction, name: str) -> None:
    """End the lease; the row keeps its token."""
    transaction.execute(update(leases).where(leases.c.name == name).values(holder="", expires=0.0, attempt=None))


def check_lease(transaction: Transaction, lease: Lease) -> None:
    """Refuse a holder that was replaced. Raises Conflict."""
    query = select(leases.c.fencing, leases.c.holder).where(leases.c.name == lease.name)
    row = transaction.execute(locked(query, transaction)).first()
    if row is None or (row.fencing, row.holder) != (lease.fencing, lease.holder):
        raise Conflict(f"the lease of '{lease.name}' went to another holder")


class Leases(Database):
    """The part of the store that holds leases."""

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """The lease, when nobody else has one that has not expired; a holder that has it gets it again under a new token."""

        def work(transaction: Transaction) -> Lease | None:
            moment = now()
            row = transaction.execute(locked(select(leases).where(leases.c.name == name), transaction)).mappings().first()
            if row is not None and row["expires"] > moment and row["holder"] != holder:
                return None
            token = take(transaction, name, holder, moment + seconds)
            return Lease(name, holder, token, moment + seconds)

        return self.write(work)

    def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """Keep a lease. Raises Conflict when it went to another holder."""

        def work(transaction: Transaction) -> Lease:
            check_lease(transaction, lease)
            expires = now() + seconds
            transaction.execute(update(leases).where(leases.c.name == lease.name).values(expires=expires))
            return Lease(lease.name, lease.holder, lease.fencing, expires)

        return self.write(work)

    def renew(self, holder: str, seconds: float) -> int:
        """Keep every lease of this holder; returns how many."""
        query = update(leases).where(leases.c.holder == holder).values(expires=now() + seconds)
        return self.write(lambda transaction: int(transaction.execute(query).rowcount))

    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing happens when another holder has it."""

        def work(transaction: Transaction) -> None:
            mine = (leases.c.name == lease.name) & (leases.c.fencing == lease.fencing)
            transaction.execute(update(leases).where(mine).values(holder="", expires=0.0))

        self.write(work)

    def lease(self, name: str) -> Lease | None:
        """Who has, or had, this lease."""
        query = select(leases).where(leases.c.name == name)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        return None if row is None else lease_of(row)
