"""Submitting a job: a form made of the recipe's schema, or a text editor, both checked while they are filled in."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.responses import Response

from pipelines.core.errors import FineryError, RecipeError
from pipelines.core.files import configs_folder
from pipelines.core.recipe import stage_ids
from pipelines.core.yaml_positions import write_yaml
from service.api.context import Service, apart, refuse_without_isolation
from service.api.problems import Problem, problem_of
from service.safety.network_recipes import KEY_NAME
from service.safety.references import key_of, strings
from service.store.errors import Conflict
from service.submission import LARGEST_PRIORITY, Wish, fit
from service.submission import submit as take
from service.web.access import Seen, Submitting, new_router, service_of
from service.web.forms import edited, field_of, form_of, names
from service.web.job_view import without_secrets
from service.web.rendering import HEADERS, page
from service.web.sessions import Visitor

router = new_router()
START = {
    "name": "my-recipe",
    "model": {"architecture": {"preset": "bert-tiny"}},
    "stages": [{"stage": "supervised", "task": "builtin/python-docs"}, {"stage": "evaluate"}],
}
"""What an empty form begins with: a recipe that runs without a network."""
LONGEST_KIND = 100
MOST_FIELDS = 3_000
"""Values of a recipe that the form shows; every one is a field."""
KEY = re.compile(r"[A-Za-z0-9_.-]{1,100}")
RESOURCES = ("gpus", "gpu_kind", "cpus", "hosts")


@dataclass(frozen=True)
class FormDraft:
    """What was filled in so far, as text and as data."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    unreadable: str = ""
    """Why the text is no mapping; the form cannot show it then."""
    how: Mapping[str, str] = field(default_factory=dict)
    """Priority and resources as they were typed."""


def from_text(service: Service, text: str, how: Mapping[str, str] | None = None) -> FormDraft:
    """A draft that was written as YAML."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return FormDraft(text, plain(service.checker.read(text).data, text), how=how or {})
    except FineryError as error:
        return FormDraft(text, unreadable=str(error), how=how or {})


def plain(data: Mapping[str, object], text: str) -> dict[str, Any]:
    """The data without the stage ids that reading it made up."""
    stages = data.get("stages")
    if not isinstance(stages, tuple):
        return dict(data)
    without_ids = [
        {
            key: value
            for key, value in stage.items()
            if key != "id" or f"id: {value}" in text or f'id: "{value}"' in text
        }
        if isinstance(stage, Mapping)
        else stage
        for stage in stages
    ]
    return {**data, "stages": without_ids}


async def posted_draft(request: Request, visitor: Visitor) -> tuple[FormDraft, Mapping[str, str]]:
    """The draft of a posted form, whichever of the two it was."""
    service = service_of(request)
    form = {key: str(value) for key, value in (await request.form()).items()}
    how = {key: form.get(f"how.{key}", "") for key in ("priority", *RESOURCES)}
    if "text" in form:
        return await service.lanes.checks.run(visitor.caller.token, from_text, service, form["text"], how), form
    fields = {
        key: value
        for key, value in form.items()
        if not key.startswith("how.") and key not in ("csrf", "key", "do", "mode")
    }
    try:
        text, data = await service.lanes.checks.run(visitor.caller.token, service.checker.draft, fields)
    except RecipeError as error:
        return FormDraft("", unreadable=str(error), how=how), form
    return FormDraft(text, data, how=how), form


def wish_of(draft: FormDraft, key: str | None = None) -> Wish:
    """The draft as a submission. Raises Problem for a number that is none."""
    numbers: dict[str, int] = {}
    for name in ("priority", "gpus", "cpus", "hosts"):
        text = draft.how.get(name, "").strip()
        if text:
            try:
                numbers[name] = int(text)
            except ValueError:
                raise Problem(422, f"{name} is '{text}', must be a whole number", "invalid_request") from None
    priority = numbers.pop("priority", 0)
    if abs(priority) > LARGEST_PRIORITY:
        raise Problem(
            422, f"priority is {priority}, must be from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}", "invalid_request"
        )
    kind = draft.how.get("gpu_kind", "").strip()
    if not kind.isprintable() or len(kind) > LONGEST_KIND:
        raise Problem(
            422, f"the kind of GPU must be part of its name, at most {LONGEST_KIND} letters", "invalid_request"
        )
    # who reads the recipe here names them by it
    keys = tuple(dict.fromkeys(text for place, text in strings(draft.data) if key_of(place) == KEY_NAME))
    return Wish(
        draft.text,
        priority=priority,
        resources={**numbers, **({"gpu_kind": kind} if kind else {})},
        secrets=keys,
        idempotency_key=key,
    )


def mistakes_of(service: Service, visitor: Visitor, draft: FormDraft) -> list[dict[str, Any]]:
    """Everything wrong with a draft, as the API says it, with the field that each mistake belongs to."""
    try:
        fit(service.store, service.settings, service.checker, visitor.home, wish_of(draft))
    except RecipeError as error:
        fields = names(form_of(draft.data)) if shown_as_form(draft) else set()
        ids = _named_ids(service, draft) if fields else []
        return [
            {
                "line": each.line,
                "key": each.key,
                "message": each.message,
                "field": field_of(each.key, ids, fields) if each.key else "",
            }
            for each in error.mistakes
        ]
    except (FineryError, Problem) as error:
        return [{"line": None, "key": "", "message": problem_of(error).detail, "field": ""}]
    return []


def _named_ids(service: Service, draft: FormDraft) -> list[str | None]:
    """The ids of a draft's stages, the default ones too, as the messages of a check name them."""
    try:
        return stage_ids(service.checker.read(draft.text).data)
    except FineryError:
        return stage_ids(draft.data)


def shown_as_form(draft: FormDraft) -> bool:
    """Whether there are fields to show; a draft of thousands of values stays text."""
    return bool(draft.data) and _count(draft.data) <= MOST_FIELDS


def _count(value: object) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(_count, inner))


@lru_cache(maxsize=1)
def examples() -> tuple[str, ...]:
    """Names of the recipes that come with Finery."""
    return tuple(path.stem for path in sorted((configs_folder() / "recipes").glob("*.yaml")))


def _begin(service: Service, visitor: Visitor, like: str, example: str) -> FormDraft:
    if like:
        request = without_secrets(service, service.store.job(like, visitor.project)).request
        how = {name: str(getattr(request.resources, name)) for name in RESOURCES if getattr(request.resources, name)}
        return from_text(service, request.recipe, {**how, "priority": str(request.priority)})
    if example in examples():
        return from_text(service, (configs_folder() / "recipes" / f"{example}.yaml").read_text(encoding="utf-8"))
    return FormDraft(write_yaml(START), dict(START))


def _page(
    request: Request,
    visitor: Visitor,
    draft: FormDraft,
    mode: str,
    mistakes: list[dict[str, Any]] | None = None,
    status: int = 200,
    say: str = "",
) -> Response:
    if mode != "yaml" and not shown_as_form(draft) and (draft.text.strip() or draft.unreadable):
        mode, say = (
            "yaml",
            say or "The form cannot show this text: it is not a recipe that can be read, or too long a one.",
        )
    by_field: dict[str, list[str]] = {}
    for each in mistakes or ():
        by_field.setdefault(each["field"], []).append(each["message"])
    return page(
        request,
        "submit.html.jinja",
        visitor,
        status,
        draft=draft,
        mode=mode,
        form=form_of(draft.data) if mode != "yaml" else None,
        mistakes=mistakes,
        by_field=by_field,
        examples=examples(),
        key=secrets.token_urlsafe(16),
        say=say,
        lines=max(1, draft.text.count("\n") + 1),
    )


@apart("checks", router.get("/submit"))
def submit_page(
    request: Request,
    visitor: Seen,
    like: Annotated[str, Query(max_length=64)] = "",
    example: Annotated[str, Query(max_length=100)] = "",
    mode: Annotated[str, Query(max_length=10)] = "form",
) -> Response:
    """The form: empty, with an example, or with another job's recipe."""
    _refuse_viewers(visitor)
    return _page(request, visitor, _begin(service_of(request), visitor, like, example), mode)


def _refuse_viewers(visitor: Visitor) -> None:
    if not visitor.may_submit:
        raise Problem(403, "Your token is a viewer's: it may look, but not submit.", "forbidden")


@router.post("/submit/form")
async def change(request: Request, visitor: Submitting) -> Response:
    """The form again, after one of its buttons: another stage, another row, another kind, or the other way to write."""
    service = service_of(request)
    draft, form = await posted_draft(request, visitor)
    order, mode = form.get("do", ""), form.get("mode", "form")
    if order == "yaml":
        mode = "yaml"
    elif order == "form":
        mode = "form"
    elif order and draft.data:
        data = edited(draft.data, order)
        reading = await service.lanes.checks.run(visitor.caller.token, service.checker.read, data)
        draft = FormDraft(reading.text, data, how=draft.how)
    return await service.lanes.checks.run(visitor.caller.token, _page, request, visitor, draft, mode)


@router.post("/submit/check")
async def check(request: Request, visitor: Submitting) -> Response:
    """What is wrong with the draft, as the page's script wants it."""
    draft, _ = await posted_draft(request, visitor)
    service = service_of(request)
    mistakes = await service.lanes.checks.run(visitor.caller.token, mistakes_of, service, visitor, draft)
    return JSONResponse({"mistakes": mistakes, "text": draft.text}, headers=HEADERS)


@router.post("/submit")
async def submit(request: Request, visitor: Submitting) -> Response:
    """Take the job and show it, or show what is wrong. The form's key makes a second press of the button harmless."""
    draft, form = await posted_draft(request, visitor)
    return await service_of(request).lanes.checks.run(visitor.caller.token, _submit, request, visitor, draft, form)


def _submit(request: Request, visitor: Visitor, draft: FormDraft, form: Mapping[str, str]) -> Response:
    service = service_of(request)
    refuse_without_isolation(service, visitor.caller)
    mode = "yaml" if "text" in form else "form"
    mistakes = mistakes_of(service, visitor, draft)
    if mistakes:
        return _page(request, visitor, draft, mode, mistakes, 422)
    try:
        key = f"web-{form['key']}" if KEY.fullmatch(form.get("key", "")) else None
        job, created = take(
            service.store, service.settings, service.checker, visitor.home, visitor.caller.token, wish_of(draft, key)
        )
    except Conflict:
        return _page(
            request,
            visitor,
            draft,
            mode,
            [],
            409,
            "This form was sent before with another recipe. Press Submit again to submit this one as well.",
        )
    if created:
        service.wake()
    return RedirectResponse(f"/jobs/{job.id}", 303, HEADERS)
