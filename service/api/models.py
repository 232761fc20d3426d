"""Published models: list, card, files, download, delete; and the leaderboards over their scores.

`{name}` of a path is a reference: `NAME` is the newest version, `NAME@3` a version, `NAME@production` what an alias
names. An id is taken too.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.responses import Response

from pipelines.core.files import archive_name
from pipelines.core.scores import smaller_is_better
from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer
from service.api.documents import ModelDocument, Page, ScoreDocument, page
from service.api.jobs import LIMIT, clean
from service.api.problems import Problem, described
from service.attempts.folders import open_regular
from service.store.errors import NotFound
from service.store.models import PublishedModel

router = APIRouter(tags=["models"], responses=described())
Fingerprint = Annotated[str | None, Query(max_length=128, description="Of an older publication of the same name.")]
BLOCK = 1 << 18
LARGEST_CARD = 4 << 20
"""Bytes of a card that are sent."""


@router.get("/models")
def models(
    service: ServiceOf,
    caller: Viewer,
    name: Annotated[str | None, Query(max_length=200)] = None,
    job: Annotated[str | None, Query(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    deleted: Annotated[bool, Query(description="Those alone that are deleted and can be restored.")] = False,
    limit: int = LIMIT,
) -> Page[ModelDocument]:
    """The published models of the project, every version of them, newest first."""
    models = service.store.models(
        caller.scope, name=clean(name), job=clean(job), after=clean(after), deleted=deleted, limit=limit
    )
    return page(documents_of(service, models), limit, models[-1].id if models else None)


def documents_of(service: Service, models: Sequence[PublishedModel]) -> list[ModelDocument]:
    """The versions with their aliases."""
    about = service.store.model_names(models)
    return [ModelDocument.of(model, about.get((model.project, model.name))) for model in models]


def model_of(service: Service, caller: Caller, name: str, fingerprint: str | None = None) -> PublishedModel:
    """A version by a reference, or by its id. Raises NotFound."""
    name = clean(name) or ""
    if name.startswith("model-") and fingerprint is None:
        try:
            return service.store.model_by_id(name, caller.scope)
        except NotFound:
            pass
    return service.store.model(caller.project, name, clean(fingerprint))


@router.get("/models/{name}", responses=described(404))
def model(name: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> ModelDocument:
    """The version that a reference names."""
    return documents_of(service, [model_of(service, caller, name, fingerprint)])[0]


@router.get(
    "/models/{name}/card",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}, **described(404)},
)
def card(name: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> Response:
    """The model card, in Markdown."""
    folder = folder_of(model_of(service, caller, name, fingerprint))
    try:
        with open_regular(folder / "README.md", folder) as file:
            text = file.read(LARGEST_CARD).decode(errors="replace")
    except OSError:
        raise NotFound("card of model", name) from None
    return PlainTextResponse(text, media_type="text/markdown")


class ModelFile(BaseModel):
    """One file of a model."""

    path: str
    bytes: int


def folder_of(model: PublishedModel) -> Path:
    """Where a model lies. Raises NotFound when it is gone."""
    folder = Path(model.path)
    if not folder.is_dir():
        raise NotFound("folder of model", model.name)
    return folder


def _files(folder: Path) -> list[Path]:
    """Every plain file of a model, in the order of names; links are left out."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@router.get("/models/{name}/files", responses=described(404))
def files(name: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> list[ModelFile]:
    """What a model consists of."""
    folder = folder_of(model_of(service, caller, name, fingerprint))
    return [ModelFile(path=str(path.relative_to(folder)), bytes=path.stat().st_size) for path in _files(folder)]


@router.get(
    "/models/{name}/files/{path:path}",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        **described(404, 416),
    },
)
def file(name: str, path: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> Response:
    """One file of a model. Ranges are answered."""
    folder = folder_of(model_of(service, caller, name, fingerprint))
    files = {str(each.relative_to(folder)): each for each in _files(folder)}
    if path not in files:
        raise NotFound("file of this model", path)
    return FileResponse(
        files[path],
        media_type="application/octet-stream",
        filename=files[path].name,
        headers={"X-Content-Type-Options": "nosniff"},
    )


@router.get(
    "/models/{name}/download",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}},
        **described(404),
    },
)
def download(name: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> Response:
    """All files of a model as one tar, which is made while it is read."""
    model = model_of(service, caller, name, fingerprint)
    folder = folder_of(model)
    plain = archive_name(model.name)
    headers = {"Content-Disposition": f'attachment; filename="{plain}.tar"'}
    return StreamingResponse(_tar(folder, plain), media_type="application/x-tar", headers=headers)


def _tar(folder: Path, name: str) -> Iterator[bytes]:
    """The folder as a tar, a block at a time; owners and times of this machine are left out."""
    for path in _files(folder):
        info = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
        with open_regular(path, folder) as content:
            info.size = os.fstat(content.fileno()).st_size
            yield info.tobuf(tarfile.PAX_FORMAT)
            left = info.size
            while left and (piece := content.read(min(BLOCK, left))):
                left -= len(piece)
                yield piece
            if left:
                raise OSError(f"{path} became shorter while it was read")
        yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


@router.delete("/models/{name}", status_code=204, response_class=Response, responses=described(404, 409))
def delete(name: str, service: ServiceOf, caller: Submitter, fingerprint: Fingerprint = None) -> Response:
    """Delete the version that a reference names, or the one with this fingerprint; others of its name stay. It can be
    restored until its grace period ends. Refused while an alias that was set names it, or something uses it."""
    remove(service, model_of(service, caller, name, fingerprint))
    return Response(status_code=204)


def remove(service: Service, model: PublishedModel) -> PublishedModel:
    """Mark a version as deleted; the sweep takes its files when the grace period is over. Raises Problem, Conflict."""
    if service.served.answers(model.id):
        raise Problem(409, f"'{model.reference}' is answering a question; delete it when that is done.", "conflict")
    gone = service.store.mark_deleted(model.id, model.project)
    service.served.forget(model.id)
    return gone


class Benchmark(BaseModel):
    """Something that was scored."""

    benchmark: str
    metric: str
    scores: int
    lower_is_better: bool


@router.get("/leaderboard", tags=["leaderboard"])
def benchmarks(service: ServiceOf, caller: Viewer) -> list[Benchmark]:
    """Every benchmark and metric that a job was scored on."""
    return [
        Benchmark(benchmark=name, metric=metric, scores=count, lower_is_better=smaller_is_better(metric))
        for name, metric, count in service.store.benchmarks(caller.scope)
    ]


@router.get("/leaderboard/{benchmark:path}", tags=["leaderboard"], responses=described(404))
def leaderboard(
    benchmark: str,
    service: ServiceOf,
    caller: Viewer,
    metric: Annotated[str | None, Query(max_length=100, description="By default the benchmark's first.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[ScoreDocument]:
    """The scores on one benchmark, best first."""
    metrics = [name for of, name, _ in service.store.benchmarks(caller.scope) if of == benchmark]
    chosen = clean(metric) or (metrics[0] if metrics else "")
    if chosen not in metrics:
        raise Problem(
            404,
            f"nothing was scored on '{benchmark}'"
            + (f" by '{metric}'; metrics: {', '.join(metrics)}" if metrics else ""),
            "not_found",
        )
    rows = service.store.leaderboard(caller.scope, benchmark, chosen, limit=limit)
    return [ScoreDocument.of(rank, row) for rank, row in enumerate(rows, start=1)]
