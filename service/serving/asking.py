"""What every question to a model has in common: which model it is for, whether it may be asked, and who still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

from pipelines.core.model_abilities import Ability, abilities_of
from service.api.context import Caller, Service, refuse_without_isolation
from service.api.models import model_of
from service.api.problems import Problem
from service.serving.processes import ModelProcesses
from service.store.errors import NotFound
from service.store.models import PublishedModel

Result = TypeVar("Result")
GONE_SECONDS = 0.5
"""How often it is asked whether a client still waits."""


def servable(
    service: Service, caller: Caller, name: str, ability: Ability, fingerprint: str | None = None
) -> PublishedModel:
    """The newest model of a name in the caller's project, else one that another project lets it ask, which answers
    such questions. Raises NotFound or Problem.

    The rule is that of jobs: where nothing isolates its process, only an admin may start one.
    """
    refuse_without_isolation(service, caller)
    try:
        model = model_of(service, caller, name, fingerprint)
    except NotFound:
        granted = service.store.granted_models(caller.project, name) if fingerprint is None else []
        if not granted:
            raise
        model = granted[0]
    folder = Path(model.path)
    if not folder.is_dir():
        raise NotFound("folder of model", name)
    abilities = abilities_of(folder)
    if abilities is None:
        raise Problem(
            400, f"The files of '{name}' do not say what kind of model it is.", "unservable_model", param="model"
        )
    if ability not in abilities.can:
        raise Problem(400, abilities.refusal(name, ability), "wrong_kind_of_model", param="model")
    return model


async def last_word(
    served: ModelProcesses, token: str, model: PublishedModel, do: str, fields: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The end of an answer, whatever came before it. Raises Problem."""
    async with served.question(token, model, do, fields) as opened:
        async for part in opened.parts(served.seconds):
            if "end" in part:
                end: Mapping[str, Any] = part["end"]
                return end
    raise Problem(500, "The answer has no end.", "internal")


async def while_heard(request: Request, work: Awaitable[Result]) -> Result:
    """What work gives; it is cancelled when its client goes away. Raises Problem then, which nobody reads."""
    task: asyncio.Future[Result] = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=GONE_SECONDS))[0]:
            if await request.is_disconnected():
                raise Problem(400, "The client went away.", "client_gone")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
