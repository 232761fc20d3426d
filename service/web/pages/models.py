"""The models that the project has published, each with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from service.store.errors import NotFound
from service.web.cards import read_card, rendered
from service.web.rendering import page
from service.web.visiting import Seen, new_router, service_of

router = new_router()
PAGE_SIZE = 50


@router.get("/models")
def models(request: Request, visitor: Seen, after: Annotated[str, Query(max_length=64)] = "") -> Response:
    """All published models, newest first."""
    found = service_of(request).store.models(visitor.project, after=after or None, limit=PAGE_SIZE + 1)
    return page(request, "models.html.jinja", visitor, models=found[:PAGE_SIZE], more=len(found) > PAGE_SIZE)


@router.get("/models/{model_id}")
def model(request: Request, visitor: Seen, model_id: str) -> Response:
    """One model by its id, or the newest of a name."""
    service = service_of(request)
    try:
        found = service.store.model_by_id(model_id, visitor.project)
    except NotFound:
        found = service.store.model(visitor.project, model_id)
    versions = service.store.models(found.project, name=found.name, limit=20)
    job = service.store.job(found.job, visitor.project)
    text = read_card(Path(found.path))
    card = None if text is None else rendered(service.redactor.text(text))
    return page(request, "model.html.jinja", visitor, model=found, versions=versions, job=job, card=card)
