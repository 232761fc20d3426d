"""Published models: list, card, files, download, delete; and the leaderboards over their scores."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.responses import Response

from pipelines.core.scores import smaller_is_better
from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer
from service.api.documents import ModelDocument, Page, ScoreDocument, page
from service.api.jobs import LIMIT, clean
from service.api.problems import Problem, described
from service.attempts.folders import open_regular
from service.store.errors import NotFound
from service.store.results import PublishedModel

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
    limit: int = LIMIT,
) -> Page[ModelDocument]:
    """The published models of the project, newest first."""
    models = service.store.models(caller.scope, name=clean(name), job=clean(job), after=clean(after), limit=limit)
    return page([ModelDocument.of(model) for model in models], limit, models[-1].id if models else None)


def model_of(service: Service, caller: Caller, name: str, fingerprint: str | None = None) -> PublishedModel:
    """A model by its name, else by its id. Raises NotFound."""
    name = clean(name) or ""
    if name.startswith("model-") and fingerprint is None:
        try:
            return service.store.model_by_id(name, caller.scope)
        except NotFound:
            pass
    return service.store.model(caller.project, name, clean(fingerprint))


@router.get("/models/{name}", responses=described(404))
def model(name: str, service: ServiceOf, caller: Viewer, fingerprint: Fingerprint = None) -> ModelDocument:
    """The newest model of a name."""
    return ModelDocument.of(model_of(service, caller, name, fingerprint))


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
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in model.name
    )
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


@router.delete("/models/{name}", status_code=204, response_class=Response, responses=described(404))
def delete(name: str, service: ServiceOf, caller: Submitter, fingerprint: Fingerprint = None) -> Response:
    """Delete the newest model of a name, or the one with this fingerprint."""
    remove(service, model_of(service, caller, name, fingerprint))
    return Response(status_code=204)


def remove(service: Service, model: PublishedModel) -> None:
    """Forget a model and delete its folder, which lies in the service's own."""
    service.store.delete_model(model.id, model.project)
    service.served.forget(model.id)
    folder = Path(model.path).resolve()
    if folder.is_relative_to(service.settings.models.resolve()) and folder != service.settings.models.resolve():
        shutil.rmtree(folder, ignore_errors=True)


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
