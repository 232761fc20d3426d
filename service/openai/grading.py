"""Grading answers at once: `/v1/fine_tuning/alpha/graders/run` and `/validate`, and the models that graders ask.

What graders are stands in `pipelines.core.graders`; here their questions are put to the processes that serve the
project's models, under the limits of every other question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from pipelines.core.config import ConfigIssues, key_path
from pipelines.core.graders import Grade, Grader, GraderAnswer, GraderQuestion, grading, read_grader, sample_of
from pipelines.core.model_abilities import Ability, abilities_of
from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer
from service.api.problems import Problem
from service.openai.answers import Whole
from service.openai.objects import ERROR
from service.openai.recipes import scratch
from service.serving.asking import last_word, servable, while_heard
from service.store.errors import NotFound
from service.store.models import PublishedModel

router = APIRouter(tags=["openai"], responses=dict.fromkeys((400, 401, 403, 404, 413, 422, 429, 503), ERROR))
RETRIED = 503
"""The status of what may be asked again later: a model that is not open yet, or a server that has no room."""


def grader_of(data: object, param: str) -> Grader:
    """The grader in a request. Raises Problem with every mistake."""
    try:
        return read_grader(data)
    except ConfigIssues as issues:
        sentences = [f"{key_path((param, *place))} {message}" for place, message in issues.found]
        raise Problem(
            400,
            "\n".join(f"{each}." if not each.endswith((".", "?")) else each for each in sentences),
            "invalid_grader",
            param=key_path((param, *issues.found[0][0])),
        ) from None


def plain(grader: Grader) -> dict[str, Any]:
    """The grader as JSON, every model that it asks named."""
    return {"type": grader.type, **grader.plain()}


def with_models(service: Service, caller: Caller, grader: Grader, param: str, own: bool = False) -> Grader:
    """The grader with a model wherever it asks one, each of which can be asked. Raises Problem.

    With `own` the models must be the project's, because a job opens their files; else another project may lend them.
    """
    names: dict[str | None, str] = {}
    for name, ability in grader.models():
        if name is None:
            names[name] = _newest_that_embeds(service, caller, param)
        else:
            asked(service, caller, name, ability, param, own)
    return read_grader(_named(plain(grader), names[None])) if None in names else grader


def asked(
    service: Service, caller: Caller, name: str, ability: Ability, param: str, own: bool = False
) -> PublishedModel:
    """The model that a request names. Raises Problem with the parameter that is wrong."""
    if name in scratch():
        raise Problem(
            400, f"'{name}' has learnt nothing yet: name a model that a job has made.", "model_not_trained", param=param
        )
    try:
        model = servable(service, caller, name, ability)
    except NotFound:
        model = None
    except Problem as problem:
        raise Problem(problem.status, problem.detail, problem.code, param=param) from None
    if model is None or (own and model.project != caller.project):
        raise Problem(
            400,
            f"There is no model '{name}' in this project: graders ask its published models, listed by /v1/models.",
            "model_not_found",
            param=param,
        )
    return model


def _newest_that_embeds(service: Service, caller: Caller, param: str) -> str:
    for model in service.store.models(caller.project, limit=500):
        abilities = abilities_of(Path(model.path))
        if abilities is not None and "embed" in abilities.can:
            return model.name
    raise Problem(
        400,
        "The metric 'cosine' compares vectors, and no model of this project gives any; publish an encoder, or take "
        "another metric.",
        "model_not_found",
        param=param,
    )


def _named(grader: Any, model: str) -> Any:
    """Plain data of graders with the model of every `cosine` that has none."""
    if isinstance(grader, Mapping):
        named = {key: _named(each, model) for key, each in grader.items()}
        return {"model": model, **named} if grader.get("evaluation_metric") == "cosine" else named
    return [_named(each, model) for each in grader] if isinstance(grader, list | tuple) else grader


# ---- grading ---------------------------------------------------------------------------------------------------------


async def graded(
    service: Service, caller: Caller, grader: Grader, item: Mapping[str, Any], sample: Mapping[str, Any]
) -> Grade:
    """The grade of one answer. Raises Problem where a model cannot be asked now but later."""
    steps = grading(grader, item, sample)
    answer: GraderAnswer | None = None
    while True:
        step: Callable[[], GraderQuestion] = steps.__next__ if answer is None else _sending(steps, answer)
        # comparing two texts may take a while; StopIteration cannot leave a thread
        over, question, grade = await asyncio.to_thread(_step, step)
        if over:
            assert grade is not None
            return grade
        assert question is not None
        answer = await answered(service, caller, question)


def _sending(steps: Any, answer: GraderAnswer) -> Callable[[], GraderQuestion]:
    return lambda: steps.send(answer)


def _step(step: Callable[[], GraderQuestion]) -> tuple[bool, GraderQuestion | None, Grade | None]:
    try:
        return False, step(), None
    except StopIteration as end:
        return True, None, end.value


async def answered(service: Service, caller: Caller, question: GraderQuestion) -> GraderAnswer:
    """What the model of a question says; an answer that says why not, where asking again would not help. Raises Problem
    where it would."""
    try:
        name = str(question.model)
        if question.texts is not None:
            model = await asyncio.to_thread(servable, service, caller, name, "embed")
            end = await last_word(service.served, caller.token, model, "embed", {"inputs": list(question.texts)})
            one, other = end["vectors"]
            cosine = sum(left * right for left, right in zip(one, other, strict=True))
            return GraderAnswer(cosine=cosine, prompt_tokens=int(end["prompt_tokens"]))
        model = await asyncio.to_thread(servable, service, caller, name, "chat")
        whole = await chatted(service, caller, model, question)
    except NotFound:
        return GraderAnswer(failure=f"The model '{question.model}' is gone.")
    except Problem as problem:
        if problem.status in (RETRIED, 429):
            raise
        return GraderAnswer(failure=problem.detail)
    return GraderAnswer(
        text=whole.texts[0],
        prompt_tokens=whole.usage.get("prompt_tokens", 0),
        completion_tokens=whole.usage.get("completion_tokens", 0),
    )


async def chatted(service: Service, caller: Caller, model: PublishedModel, question: GraderQuestion) -> Whole:
    """A model's answer to messages, as a whole; where its positions leave less room than is asked for, in that. Raises
    Problem."""
    fields = {
        "messages": [dict(each) for each in question.messages],
        "n": 1,
        "fit": True,
        "choice": {
            "temperature": question.temperature,
            "top_p": question.top_p,
            "seed": question.seed or 0,
            "stop": [],
            "max_tokens": question.max_tokens,
            "logprobs": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logit_bias": {},
            **({} if question.json_schema is None else {"json_schema": question.json_schema}),
        },
    }
    whole = Whole(1)
    async with service.served.question(caller.token, model, "chat", fields) as opened:
        async for part in opened.parts(service.settings.serve_seconds):
            whole.add(part)
    return whole


# ---- routes ----------------------------------------------------------------------------------------------------------


class GraderBody(BaseModel):
    """A grader to look at."""

    model_config = ConfigDict(extra="forbid")

    grader: dict[str, Any] = Field(description="string_check, text_similarity, score_model, label_model or multi.")


class RunBody(GraderBody):
    """A grader, and what it is to grade."""

    model_sample: str = Field(max_length=200_000, description="The answer: `sample` in templates.")
    item: dict[str, Any] = Field(default={}, description="The row: `item` in templates.")


@router.post("/fine_tuning/alpha/graders/validate")
def validate(body: GraderBody, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """Say what is wrong with a grader, or return it."""
    with_models(service, caller, grader_of(body.grader, "grader"), "grader")
    return {"grader": body.grader}


@router.post("/fine_tuning/alpha/graders/run")
async def run(body: RunBody, request: Request, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Grade one answer."""
    grader = await asyncio.to_thread(with_models, service, caller, grader_of(body.grader, "grader"), "grader")
    began = time.monotonic()
    grade = await while_heard(request, graded(service, caller, grader, body.item, sample_of(body.model_sample)))
    scores = {name: part.score for name, part in grade.parts.items()} or {grade.name: grade.score}
    usage = {model: vars(each) for model, each in grade.usage.items()}
    tokens = {model: each["prompt_tokens"] + each["completion_tokens"] for model, each in usage.items()}
    return {
        "reward": grade.score,
        "sub_rewards": scores if grade.parts else {},
        "metadata": {
            "name": grade.name,
            "type": grade.type,
            "errors": faults_of(grade),
            "execution_time": round(time.monotonic() - began, 4),
            "scores": scores,
            "sampled_model_name": next(iter(usage), None),
            "token_usage": sum(tokens.values()) if tokens else None,
        },
        "model_grader_token_usage_per_model": tokens,
    }


FAULTS = (
    "formula_parse_error", "invalid_variable_error", "model_grader_parse_error", "model_grader_refusal_error",
    "model_grader_server_error", "other_error", "python_grader_runtime_error", "python_grader_server_error",
    "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
)  # fmt: skip


def faults_of(grade: Grade) -> dict[str, Any]:
    """What went wrong, under OpenAI's names. Only the model's own failure has a place for a sentence there; the others
    stand in `details`."""
    faults: Mapping[str, str] = {str(key): value for key, value in grade.faults.items()}
    return {
        **{name: name in faults for name in FAULTS},
        "model_grader_server_error_details": faults.get("model_grader_server_error"),
        "python_grader_runtime_error_details": None,
        "python_grader_server_error_type": None,
        "details": dict(faults),
    }
