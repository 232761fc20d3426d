"""A question to a served model, and its answer as it arrives: made in the process's reader, read in a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from service.api.problems import Problem

MOST_BYTES = 64 << 20
"""Of an answer that arrived and was not read yet."""


class ProcessEnded(Exception):
    """The process that was asked has ended, in one sentence."""


class Question:
    """One question. Made in the event loop of the request that asks it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.over = False
        """Whether the last word was received."""
        self.waiting_bytes = 0
        self.first_seconds: float | None = None
        """How long the first written text took; None before it."""
        self.seconds = 0.0
        """How long the whole answer took."""
        self.end: Mapping[str, Any] | None = None
        """The last word, where the answer is complete. It is not trusted."""
        self.problem: Problem | None = None
        """What the question was answered with instead."""
        self._asked = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[tuple[Mapping[str, Any], int]] = asyncio.Queue()

    def arrive(self, message: Mapping[str, Any], size: int) -> bool:
        """From any thread: a part of the answer, of so many bytes. False where too much waits."""
        self.waiting_bytes += size
        if "piece" in message and self.first_seconds is None:
            self.first_seconds = time.monotonic() - self._asked
        if "end" in message or "error" in message:
            self.over = True
            self.seconds = time.monotonic() - self._asked
            if "error" in message:
                self.problem = problem_of_answer(message["error"])
            elif isinstance(message["end"], Mapping):
                self.end = message["end"]
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, (message, size))
        except RuntimeError:  # the request and its loop are gone
            return True
        return self.waiting_bytes <= MOST_BYTES

    async def parts(self, seconds: float) -> AsyncIterator[Mapping[str, Any]]:
        """The parts of the answer, the last word among them, within so many seconds. Raises Problem.

        One task may read the first part and another one the rest.
        """
        end = self._loop.time() + seconds
        while True:
            try:
                message, size = await asyncio.wait_for(self._arrived.get(), end - self._loop.time())
            except TimeoutError:
                self.problem = Problem(
                    503, f"The answer took longer than {seconds:g} s; ask for a shorter one.", "timeout"
                )
                raise self.problem from None
            self.waiting_bytes -= size
            if "error" in message:
                raise self.problem or problem_of_answer(message["error"])
            yield message
            if "end" in message:
                return


def problem_of_answer(error: object) -> Problem:
    """What a process's error is to a client. The process is not trusted: nothing of it is taken as it is."""
    fields = error if isinstance(error, Mapping) else {}
    status = 400 if fields.get("status") == 400 else 500 if fields.get("status") != 503 else 503
    message = str(fields.get("message") or "The model could not answer.")[:1000]
    code = str(fields.get("code") or "internal")[:60]
    code = "invalid_request" if code == "bad_recipe" else code
    param = str(fields["param"])[:60] if fields.get("param") else None
    headers = {"Retry-After": "5"} if status == 503 else {}
    return Problem(status, f"{message[:1].upper()}{message[1:]}", code, headers=headers, param=param)
