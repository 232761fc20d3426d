"""The hosts that run jobs, their GPUs, and what holds each of them."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request
from starlette.responses import Response

from service.web.rendering import page
from service.web.visiting import Administering, new_router, service_of

router = new_router()
SILENT = 90.0
"""Seconds after which a host that says nothing is shown as silent."""


@router.get("/hosts")
def hosts(request: Request, visitor: Administering) -> Response:
    """All hosts; for admins, because hosts are shared by all projects."""
    store = service_of(request).store
    live = {attempt.id: (attempt, job) for attempt, job in store.live_attempts()}
    holders = store.slot_holders()
    rows: list[dict[str, Any]] = []
    for host in store.hosts():
        here = [(attempt, job) for attempt, job in live.values() if any(part.host == host.name for part in attempt.placement)]
        slots = []
        for slot in host.slots:
            _, job = live.get(holders.get((host.name, slot.index), ""), (None, None))
            slots.append({"slot": slot, "taken": (host.name, slot.index) in holders, "job": job})
        rows.append(
            {"host": host, "slots": slots, "jobs": [job for _, job in here], "cpus": sum(attempt.resources.cpus for attempt, _ in here),
             "silent": host.state != "down" and time.time() - host.seen > SILENT}
        )  # fmt: skip
    return page(request, "hosts.html.jinja", visitor, rows=rows)
