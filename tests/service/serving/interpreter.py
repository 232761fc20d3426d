"""One warm interpreter for all models that the tests of a process open: real processes, isolated as ever, that import
torch and transformers once together.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from service.executors.warm import WarmInterpreters
from tests.service.served import Served


class _Shared(WarmInterpreters):
    """Outlives the executors that use it, and is waited for: else the first process of each would import too."""

    def launch(self, request: Mapping[str, Any], content: bytes, tether: int | None = None) -> bytes | None:
        answer = super().launch(request, content, tether)
        if answer is not None or request.get("sandbox") is None:  # others have environments of their own
            return answer
        self.make_for(str(request["attempt_id"]))
        end = time.monotonic() + 120
        while answer is None and time.monotonic() < end and not all(each.ended() for each in self._kept.values()):
            time.sleep(0.02)
            answer = super().launch(request, content, tether)
        return answer

    def close(self) -> None:
        """Ends with the tests."""


@cache
def _shared() -> _Shared:
    made = _Shared(1)
    atexit.register(WarmInterpreters.close, made)
    return made


def share_interpreter(served: Served) -> None:
    """Let the models of an application be opened by the shared interpreter."""
    executor = served.service.served.executor()
    executor._warm.close()
    executor._warm = _shared()
