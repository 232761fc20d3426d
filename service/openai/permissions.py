"""The routes of /v1/fine_tuning/checkpoints/{model}/permissions: who else may ask a fine-tuned model.

An admin lets other projects of this server ask a model of its own: they find it in /v1/models, and chat, completions,
embeddings, predictions, graders and evals answer them. They cannot read its files, train from it or delete it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from service.api.context import Admin, Caller, Service, ServiceOf
from service.api.jobs import clean
from service.api.problems import Problem
from service.openai.objects import ERROR, listed
from service.store.errors import NotFound
from service.store.permissions import Permission
from service.store.projects import PROJECT

router = APIRouter(
    prefix="/fine_tuning/checkpoints", tags=["openai"], responses=dict.fromkeys((400, 401, 403, 404, 422, 429), ERROR)
)
Limit = Annotated[int, Query(ge=1, le=100)]
MOST_PROJECTS = 100
STEP = re.compile(r":ckpt-step-\d+")


class NewPermissions(BaseModel):
    """Projects that may ask a model."""

    model_config = ConfigDict(extra="forbid")

    project_ids: list[Annotated[str, Field(max_length=40)]] = Field(min_length=1, max_length=MOST_PROJECTS)


def permission_object(permission: Permission) -> dict[str, Any]:
    """A `checkpoint.permission`."""
    return {
        "object": "checkpoint.permission",
        "id": permission.id,
        "created_at": int(permission.created),
        "project_id": permission.project,
    }


@router.post("/{model}/permissions")
def create(model: str, body: NewPermissions, service: ServiceOf, caller: Admin) -> dict[str, Any]:
    """Let other projects ask the model."""
    name = _model(service, caller, model)
    for project in body.project_ids:
        if PROJECT.fullmatch(project) is None or project == caller.project:
            why = "is this model's own project" if project == caller.project else "is no name of a project"
            raise Problem(400, f"'{project}' {why}.", "invalid_project", param="project_ids")
    try:
        made = service.store.grant(caller.project, name, body.project_ids)
    except NotFound as error:
        raise Problem(400, f"{error}.", "invalid_project", param="project_ids") from None
    return listed([permission_object(each) for each in made], False)


@router.get("/{model}/permissions")
def permissions(
    model: str,
    service: ServiceOf,
    caller: Admin,
    project_id: Annotated[str | None, Query(max_length=40)] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    limit: Limit = 10,
    order: Literal["ascending", "descending"] = "descending",
) -> dict[str, Any]:
    """Who may ask the model."""
    rows = service.store.permissions(
        caller.project,
        _model(service, caller, model),
        project=clean(project_id),
        after=clean(after),
        limit=limit + 1,
        newest_first=order == "descending",
    )
    return listed([permission_object(row) for row in rows[:limit]], len(rows) > limit)


@router.delete("/{model}/permissions/{permission_id}")
def delete(model: str, permission_id: str, service: ServiceOf, caller: Admin) -> dict[str, Any]:
    """Take a permission back; the next question is refused."""
    gone = service.store.revoke(clean(permission_id) or "", caller.project, _model(service, caller, model))
    return {"object": "checkpoint.permission", "id": gone.id, "deleted": True}


def _model(service: Service, caller: Caller, model: str) -> str:
    """The name of a model of the caller's own project. Raises NotFound, or Problem for a step that is no model."""
    name = clean(model) or ""
    if STEP.search(name):
        raise Problem(
            400,
            f"'{name}' is a step on the way, which serves resuming alone; name the model that the job made.",
            "unsupported_checkpoint",
            param="fine_tuned_model_checkpoint",
        )
    return service.store.model(caller.project, name).name
