"""Hosts and their GPUs in the store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select, update

from service.jobs.job import GpuSlot, Host
from service.jobs.states import AttemptState, Move, Reason, State
from service.store import tables
from service.store.audit import note
from service.store.changes import QUEUE
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.jobs import apply_move, locked_job
from service.store.tables import now, placement_of

hosts = tables.hosts
slots = tables.gpu_slots
STATES = ("up", "draining", "down")


class HostQueries(Database):
    """The part of the store that holds hosts."""

    def report_host(self, host: Host) -> None:
        """What a host has now. A GPU that is no longer named gets no new work; an admin's `draining` stays."""

        def work(transaction: Transaction) -> None:
            values = {
                "executor": host.executor,
                "cpus": host.cpus,
                "memory": host.memory,
                "seen": now(),
                "info": dict(host.info),
            }
            before = transaction.execute(select(hosts).where(hosts.c.name == host.name)).mappings().first()
            if before is None:
                transaction.execute(insert(hosts).values(name=host.name, state=host.state, **values))
            else:
                if host.state == "down" or before["state"] != "draining":
                    values["state"] = host.state
                transaction.execute(update(hosts).where(hosts.c.name == host.name).values(**values))
            changed = before is None or any(
                before[key] != values.get(key, before[key]) for key in ("cpus", "memory", "state")
            )
            if self._report_slots(transaction, host) or changed:
                transaction.topics.add(QUEUE)

        self.write(work)

    @staticmethod
    def _report_slots(transaction: Transaction, host: Host) -> bool:
        """Write the GPUs; returns whether any changed."""
        rows = {
            row["number"]: row for row in transaction.execute(select(slots).where(slots.c.host == host.name)).mappings()
        }
        changed = False
        for slot in host.slots:
            values: dict[str, Any] = {"kind": slot.kind, "memory": slot.memory, "uuid": slot.uuid, "present": True}
            row = rows.pop(slot.index, None)
            if row is None:
                transaction.execute(insert(slots).values(host=host.name, number=slot.index, **values))
            elif any(row[key] != value for key, value in values.items()):
                transaction.execute(
                    update(slots).where(slots.c.host == host.name, slots.c.number == slot.index).values(**values)
                )
            else:
                continue
            changed = True
        for number, row in rows.items():
            if row["present"]:
                transaction.execute(
                    update(slots).where(slots.c.host == host.name, slots.c.number == number).values(present=False)
                )
                changed = True
        return changed

    def hosts(self) -> list[Host]:
        """All hosts by name, with the GPUs that they have now."""

        def work(transaction: Transaction) -> list[Host]:
            by_host: dict[str, list[GpuSlot]] = {}
            query = select(slots).where(slots.c.present).order_by(slots.c.host, slots.c.number)
            for row in transaction.execute(query).mappings():
                by_host.setdefault(row["host"], []).append(
                    GpuSlot(row["number"], row["kind"], row["memory"], row["uuid"])
                )
            return [
                Host(slots=tuple(by_host.get(row["name"], ())), **row)
                for row in transaction.execute(select(hosts).order_by(hosts.c.name)).mappings()
            ]

        return self.read(work)

    def set_host_state(self, name: str, state: str, stop: bool = False) -> None:
        """`up`, `draining` (what runs goes on, nothing new starts) or `down`. With `stop` what runs there saves a
        checkpoint and goes back into the queue. Raises NotFound."""
        if state not in STATES:
            raise ValueError(f"state is '{state}', must be one of {', '.join(STATES)}")

        def work(transaction: Transaction) -> None:
            if not transaction.execute(update(hosts).where(hosts.c.name == name).values(state=state)).rowcount:
                raise NotFound("host", name)
            note(transaction, "host.state", "host", name, None, state=state, **({"stop": True} if stop else {}))
            transaction.topics.add(QUEUE)
            if stop:
                self._vacate(transaction, name)

        self.write(work)

    @staticmethod
    def _vacate(transaction: Transaction, name: str) -> None:
        query = select(tables.attempts.c.job, tables.attempts.c.placement).order_by(tables.attempts.c.job)
        live = transaction.execute(query.where(tables.attempts.c.state != AttemptState.ENDED)).all()
        for job_id in [job_id for job_id, held in live if name in {part.host for part in placement_of(held)}]:
            job = locked_job(transaction, job_id)
            if job.state in (State.STARTING, State.RUNNING):
                message = f"makes room on host '{name}', which is taken out of service"
                apply_move(transaction, job, Move.PREEMPT, reason=Reason.PREEMPTED, message=message)

    def slot_holders(self) -> dict[tuple[str, int], str]:
        """(host, GPU index) -> the attempt that holds it, for every GPU that is taken."""
        query = select(slots.c.host, slots.c.number, slots.c.attempt).where(slots.c.attempt.is_not(None))
        return self.read(lambda transaction: {(row[0], row[1]): row[2] for row in transaction.execute(query)})
