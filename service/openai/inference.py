"""The routes of /v1 that ask models: chat/completions, completions and embeddings."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import anyio
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import JSONResponse, Response

from pipelines.core.model_abilities import Ability
from service.api.context import Caller, Service, ServiceOf, Submitter, still_valid
from service.api.problems import Problem, envelope, problem_of
from service.api.streams import GRACE_SECONDS, HEADERS, PING_SECONDS
from service.jobs.job import new_id
from service.openai.answers import ChatCompletionBuilder, CompletionBuilder, Whole
from service.openai.objects import ERROR
from service.openai.questions import ChatBody, CompletionBody, EmbeddingBody
from service.openai.recipes import scratch
from service.serving.asking import last_word, servable, while_heard
from service.serving.questions import Question
from service.store.errors import NotFound
from service.store.models import PublishedModel

router = APIRouter(tags=["openai"], responses=dict.fromkeys((400, 401, 403, 404, 413, 422, 429, 503), ERROR))
VALID_SECONDS = 5.0
"""How often a stream asks whether its caller's token is still valid."""
DONE = "[DONE]"


@router.post("/chat/completions", response_model=None)
async def chat(body: ChatBody, request: Request, service: ServiceOf, caller: Submitter) -> Response:
    """Let a model answer a conversation, as a whole or as a stream."""
    model = await _model(service, caller, body.model, "chat")
    answer = ChatCompletionBuilder(new_id("chatcmpl"), body.model, model.fingerprint, body.logprobs, body.n)
    return await _answered(request, service, caller, model, "chat", body, answer)


@router.post("/completions", response_model=None)
async def complete(body: CompletionBody, request: Request, service: ServiceOf, caller: Submitter) -> Response:
    """Let a model go on with texts, as a whole or as a stream."""
    model = await _model(service, caller, body.model, "complete")
    texts = len(body.prompts()) * body.n
    answer = CompletionBuilder(new_id("cmpl"), body.model, model.fingerprint, body.logprobs is not None, texts)
    return await _answered(request, service, caller, model, "complete", body, answer)


@router.post("/embeddings")
async def embed(body: EmbeddingBody, request: Request, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """The vectors of texts."""
    model = await _model(service, caller, body.model, "embed")
    end = await while_heard(request, last_word(service.served, caller.token, model, "embed", body.question()))
    vectors = end["vectors"]
    size = len(vectors[0])
    if body.dimensions not in (None, size):
        raise Problem(
            400,
            f"The vectors of this model have {size} dimensions and no others.",
            "invalid_request",
            param="dimensions",
        )
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": vector
            if body.encoding_format == "float"
            else base64.b64encode(struct.pack(f"<{size}f", *vector)).decode(),
        }
        for index, vector in enumerate(vectors)
    ]
    tokens = int(end["prompt_tokens"])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


async def _model(service: Service, caller: Caller, name: str, ability: Ability) -> PublishedModel:
    """The project's model of this name, which can be asked this. Raises Problem."""
    if name in scratch():
        raise Problem(
            400,
            f"'{name}' has learnt nothing yet: fine-tune it first, and ask the model that the job makes.",
            "model_not_trained",
            param="model",
        )
    try:
        return await run_in_threadpool(servable, service, caller, name, ability)
    except NotFound:
        raise Problem(
            404,
            f"The model '{name}' does not exist or you do not have access to it.",
            "model_not_found",
            param="model",
        ) from None


async def _answered(
    request: Request,
    service: Service,
    caller: Caller,
    model: PublishedModel,
    do: Ability,
    body: ChatBody | CompletionBody,
    answer: ChatCompletionBuilder | CompletionBuilder,
) -> Response:
    question = body.question()
    if not body.stream:
        whole = Whole(answer.texts)

        async def read() -> None:
            async with _asked(service, caller, model, do, question) as opened:
                async for part in opened.parts(service.settings.serve_seconds):
                    whole.add(part)

        await while_heard(request, read())
        return JSONResponse(answer.document(whole))
    opening = _asked(service, caller, model, do, question)
    opened = await while_heard(request, opening.__aenter__())
    try:
        parts = opened.parts(service.settings.serve_seconds)
        first = await while_heard(request, anext(parts))  # what is wrong with the question is told by a status
    except BaseException:
        await _left(opening)
        raise
    usage = body.stream_options is not None and body.stream_options.include_usage
    ending = anyio.Event()
    return EventSourceResponse(
        _events(service, caller, opening, first, parts, answer, usage, ending),
        headers=HEADERS,
        ping=PING_SECONDS,
        sep="\n",
        shutdown_event=ending,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _events(
    service: Service,
    caller: Caller,
    opening: AbstractAsyncContextManager[Question],
    first: Mapping[str, Any],
    parts: AsyncIterator[Mapping[str, Any]],
    answer: ChatCompletionBuilder | CompletionBuilder,
    usage: bool,
    ending: anyio.Event,
) -> AsyncIterator[ServerSentEvent]:
    """The chunks of an answer. A client that goes away ends this, and with it the question; `ending` is set when the
    server stops."""
    looked = time.monotonic()
    try:
        for chunk in (*answer.begun(usage), *answer.chunks(first, usage)):
            yield _event(chunk)
        async for part in parts:
            for chunk in answer.chunks(part, usage):
                yield _event(chunk)
            if ending.is_set():
                raise Problem(503, "The server stops; ask again.", "model_not_ready")
            if time.monotonic() - looked > VALID_SECONDS:
                looked = time.monotonic()
                if not await run_in_threadpool(still_valid, service, caller):
                    raise Problem(401, "The token is expired or was revoked.", "bad_token")
        yield ServerSentEvent(DONE)
    except Problem as problem:
        problem.detail = service.redactor.text(problem.detail)  # as where an answer is a status
        yield _event(envelope(problem_of(problem)))
    finally:
        await _left(opening)


def _event(document: Mapping[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


async def _left(opening: AbstractAsyncContextManager[Question]) -> None:
    with suppress(RuntimeError):  # it was never entered
        await opening.__aexit__(None, None, None)


def _asked(
    service: Service, caller: Caller, model: PublishedModel, do: Ability, fields: Mapping[str, Any]
) -> AbstractAsyncContextManager[Question]:
    return service.served.question(caller.token, model, do, fields)
