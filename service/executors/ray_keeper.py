"""Runs one host's part of an attempt inside a Ray actor, and ends it when nobody on the service's side is heard.

The part is a launcher's tree as with the local executor, but tethered: when the actor's process ends, for whatever
reason, the kernel closes the pipe between them and the launcher kills the tree. The actor ends itself when it has not
been asked for `lease` seconds. A service that cannot reach a host therefore knows, once that time has passed on its own
clock, that nothing of the attempt lives there: it need not trust Ray's word.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from service.executors.local import LocalExecutor
from service.executors.parts import start_part
from service.executors.protocol import Running


class PartActor:
    """The body of the actor."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._heard = time.monotonic()
        self._executor: LocalExecutor | None = None
        self._handle: Any = None
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Start the part; returns the launcher's record. Raises ExecutorError."""
        self._heard = time.monotonic()
        chosen = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}  # by Ray
        self._executor, self._handle = start_part(part, part["secrets"], chosen)
        return dict(self._handle.record)

    def beat(self) -> bool:
        """Renew the lease; whether the part runs."""
        self._heard = time.monotonic()
        return (
            self._handle is not None
            and self._executor is not None
            and isinstance(self._executor.poll(self._handle), Running)
        )

    def stop(self, grace: float) -> None:
        """As `Executor.stop`."""
        if self._handle is not None and self._executor is not None:
            self._executor.stop(self._handle, grace)

    def address(self) -> str:
        """Where the other hosts reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def _watch(self) -> None:
        while time.monotonic() - self._heard < self._lease:
            time.sleep(min(0.5, self._lease / 10))
        os._exit(1)  # the tether breaks with the process
