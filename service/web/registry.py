"""The part of a model's page that keeps its versions: aliases, promotion, comparison, lineage, deletion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Form, Query, Request
from fastapi.responses import RedirectResponse
from starlette.responses import Response

from service.api.context import Service, apart
from service.api.models import remove
from service.api.problems import Problem
from service.lineage import Lineage, lineage_of
from service.promotion import Promotion, alias_named, removable
from service.promotion import promote as move
from service.safety.references import PRODUCTION
from service.serving.comparing import compared
from service.store.errors import NotFound
from service.store.models import ModelName, PublishedModel, split_score
from service.web.access import Seen, Submitting, new_router, service_of
from service.web.rendering import HEADERS, page
from service.web.sessions import Visitor
from service.web.stages import StageGraph, StageView, clipped, graph_of

router = new_router()
MOST_VERSIONS = 50
"""That the page of a model lists."""
KINDS = {
    "data": "data",
    "tokenizer": "tokenizer",
    "start": "began with",
    "stage": "stage",
    "model": "this model",
}
"""What the page calls them."""
Word = Annotated[str, Form(max_length=60)]
Line = Annotated[str, Form(max_length=500)]


@dataclass(frozen=True)
class RegistryView:
    """What the page shows of a version and its name."""

    model: PublishedModel
    about: ModelName
    versions: list[PublishedModel]
    lineage: Lineage
    graph: StageGraph

    def aliases(self, model: PublishedModel) -> list[str]:
        """What names this version now."""
        return [each.alias for each in self.about.aliases if each.model == model.id]

    @property
    def own(self) -> list[str]:
        """The aliases of the version that may be removed or moved."""
        return [each.alias for each in self.about.aliases if each.model == self.model.id and each.set is not None]

    @property
    def production(self) -> int | None:
        """The version that is in production."""
        return next((each.version for each in self.about.aliases if each.alias == PRODUCTION), None)

    @property
    def scores(self) -> list[str]:
        """Every score of the version, as `glue/mrpc.f1`."""
        return [
            f"{benchmark}.{metric}"
            for benchmark, values in self.model.scores.items()
            if isinstance(values, dict)
            for metric in values
        ]

    def title(self, node: str) -> str:
        """What one of the lineage's nodes is called."""
        return next(each.title for each in self.lineage.nodes if each.id == node)

    def short_title(self, node: str) -> str:
        """The same as it fits into the drawing."""
        return clipped(self.title(node))

    def parent(self, node: str) -> str:
        """Id of the version of the project's model that a node is, where it is another one; else empty."""
        found = next(each.model for each in self.lineage.nodes if each.id == node)
        return "" if found == self.model.id else found


def registry_view(service: Service, model: PublishedModel) -> RegistryView:
    """Everything that the page shows of a version beside its card."""
    lineage = lineage_of(service.store, model)
    views = [StageView(each.id, KINDS[each.kind], each.reads, each.detail, "given") for each in lineage.nodes]
    return RegistryView(
        model,
        service.store.model_name(model.project, model.name),
        service.store.models(model.project, name=model.name, limit=MOST_VERSIONS),
        lineage,
        graph_of(views, late=True),
    )


def _model(request: Request, visitor: Visitor, model_id: str) -> PublishedModel:
    return service_of(request).store.model_by_id(model_id, visitor.project)


def _answer(request: Request, visitor: Visitor, model: PublishedModel, sentence: str) -> Response:
    """The part again, with what was done, for HTMX; the page itself for everybody else."""
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/models/{model.id}", 303, HEADERS)
    view = registry_view(service_of(request), model)
    return page(request, "parts/model_registry.html.jinja", visitor, registry=view, done=sentence)


@apart("comparisons", router.post("/models/{model_id}/promote"))
def promote(
    request: Request, visitor: Submitting, model_id: str, to: Word = PRODUCTION, on: Line = "", reason: Line = ""
) -> Response:
    """Have an alias name this version; a 412 with the figures where it is not better beyond noise."""
    model = _model(request, visitor, model_id)
    wanted = Promotion(to.strip().removeprefix("@") or PRODUCTION, on.strip(), reason.strip())
    done = move(service_of(request), visitor.caller, model, wanted)
    return _answer(request, visitor, model, done.sentence)


@router.post("/models/{model_id}/alias")
def set_alias(
    request: Request, visitor: Submitting, model_id: str, alias: Word, remove: Annotated[str, Form()] = ""
) -> Response:
    """Have an alias of one's own name this version, or nothing any more."""
    model = _model(request, visitor, model_id)
    store, name = service_of(request).store, alias_named(alias.strip().removeprefix("@"))
    if remove:
        store.remove_alias(model.project, model.name, removable(name, visitor.caller))
        return _answer(request, visitor, model, f"{model.name}@{name} names nothing any more.")
    if name == PRODUCTION:
        raise Problem(409, f"'@{PRODUCTION}' is moved by a promotion; press Promote.", "promote_instead")
    store.set_alias(model.id, name, visitor.project)
    return _answer(request, visitor, model, f"{model.name}@{name} names version {model.version}.")


@router.post("/models/{model_id}/benchmark")
def set_benchmark(request: Request, visitor: Submitting, model_id: str, on: Line) -> Response:
    """Name the score that best goes by."""
    model = _model(request, visitor, model_id)
    service_of(request).store.set_benchmark(model.project, model.name, *split_score(on.strip()))
    return _answer(request, visitor, model, f"{model.name}@best goes by {on.strip()}.")


@router.post("/models/{model_id}/delete")
def delete(request: Request, visitor: Submitting, model_id: str) -> Response:
    """Delete a version; the list of deleted ones brings it back."""
    remove(service_of(request), _model(request, visitor, model_id))
    return RedirectResponse("/models?deleted=1", 303, HEADERS)


@router.post("/models/{model_id}/restore")
def restore(request: Request, visitor: Submitting, model_id: str) -> Response:
    """Bring a deleted version back."""
    store = service_of(request).store
    gone = store.model_by_id(model_id, visitor.project, deleted=True)
    store.restore_model(gone.project, gone.reference)
    return RedirectResponse(f"/models/{model_id}", 303, HEADERS)


@apart("comparisons", router.get("/models/{model_id}/compare"))
def compare(
    request: Request, visitor: Seen, model_id: str, against: Annotated[str, Query(max_length=250)] = ""
) -> Response:
    """Two versions on the same examples."""
    service = service_of(request)
    model = _model(request, visitor, model_id)
    try:
        other = service.store.model_by_id(against, visitor.project)
    except NotFound:
        other = service.store.model(model.project, f"{model.name}@{against}" if against.isdecimal() else against)
    context: dict[str, Any] = {"model": model, "other": other, "document": None, "problem": None}
    try:
        context["document"] = compared(service, visitor.caller, model, other)
    except Problem as problem:
        context["problem"] = problem
    return page(request, "model_compare.html.jinja", visitor, **context)
