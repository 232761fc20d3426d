"""Files: announce, send in chunks or at once, complete with a checksum, list, read, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer, apart
from service.api.documents import FileDocument, Page, page
from service.api.jobs import LIMIT, clean
from service.api.problems import Problem, described
from service.jobs.states import TERMINAL, State
from service.store.files import READY, File
from service.uploads import append, arrived, begin, discard, file_path, finish, from_url, suffix_of

router = APIRouter(tags=["files"], responses=described())
SHA256 = r"^[0-9a-f]{64}$"
Purpose = Annotated[str, Query(pattern=r"^[a-z][a-z0-9-]{0,39}$", description="A word of your own; `data` by default.")]
BYTES = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class NewFile(BaseModel):
    """A file that will be sent in chunks, or that lies at a public URL."""

    model_config = ConfigDict(extra="forbid")

    filename: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Its ending tells the format: .jsonl, .json, .csv, .tsv, .parquet, .txt.",
    )
    purpose: str = Field("data", pattern=r"^[a-z][a-z0-9-]{0,39}$")
    bytes: int | None = Field(None, ge=0, lt=2**62, description="Its size, where it is known.")
    sha256: str | None = Field(
        None,
        pattern=SHA256,
        description="When a complete file of the project has this checksum, that one is the answer.",
    )
    url: str | None = Field(None, max_length=4000, description="Fetched at once; private addresses are refused.")


@apart(
    "fetches",
    router.post(
        "/files",
        status_code=201,
        responses={
            200: {"model": FileDocument, "description": "The project's file with this checksum."},
            **described(409),
        },
    ),
)
def create(body: NewFile, response: Response, service: ServiceOf, caller: Submitter) -> FileDocument:
    """Announce a file, which is then sent with PATCH and completed; or fetch one from a URL."""
    store, settings = service.store, service.settings
    name = clean(body.filename)
    existing = store.find_file(caller.project, body.sha256) if body.sha256 is not None else None
    if existing is not None and (name is None or suffix_of(name) == suffix_of(existing.filename)):
        response.status_code = 200
        return FileDocument.of(existing)
    if body.url is not None:
        return FileDocument.of(
            from_url(store, settings, caller.project, body.url, name, body.purpose, sha256=body.sha256, by=caller.token)
        )
    if name is None:
        raise Problem(422, "filename: is missing", "invalid_request")
    file = begin(
        store, settings, caller.project, name, body.purpose, size=body.bytes, sha256=body.sha256, by=caller.token
    )
    response.headers["Location"] = f"/api/v1/files/{file.id}"
    response.headers["Upload-Offset"] = "0"
    return FileDocument.of(file)


@router.post("/files/upload", status_code=201, responses=described(409), openapi_extra=BYTES)
async def upload(
    request: Request,
    service: ServiceOf,
    caller: Submitter,
    filename: Annotated[str, Query(min_length=1, max_length=255)],
    purpose: Purpose = "data",
    sha256: Annotated[str | None, Query(pattern=SHA256)] = None,
) -> FileDocument:
    """Send a small file at once, as the body of the request."""
    store, settings = service.store, service.settings
    length = request.headers.get("content-length", "")
    size = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
    file = await run_in_threadpool(
        lambda: begin(
            store, settings, caller.project, clean(filename) or "", purpose, size=size, sha256=sha256, by=caller.token
        )
    )
    try:
        await append(store, settings, file, 0, request.stream())
        return FileDocument.of(await service.lanes.fetches.run(caller.token, finish, store, settings, file, sha256))
    except BaseException:
        await run_in_threadpool(discard, store, settings, file)
        raise


@router.get("/files")
def files(
    service: ServiceOf,
    caller: Viewer,
    purpose: Annotated[str | None, Query(max_length=40)] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    limit: int = LIMIT,
) -> Page[FileDocument]:
    """The files of the project, newest first."""
    files = service.store.files(caller.scope, purpose=clean(purpose), after=clean(after), limit=limit)
    return page([FileDocument.of(file) for file in files], limit, files[-1].id if files else None)


def file_of(service: Service, caller: Caller, file_id: str) -> File:
    """A file that the caller may see. Raises NotFound."""
    return service.store.file(clean(file_id) or "", caller.scope)


@router.api_route("/files/{file_id}", methods=["GET"], responses=described(404))
def file(file_id: str, response: Response, service: ServiceOf, caller: Viewer) -> FileDocument:
    """One file; `offset` and the header Upload-Offset say how much of it has arrived."""
    file = file_of(service, caller, file_id)
    offset = arrived(service.settings, file)
    response.headers["Upload-Offset"] = str(offset)
    return FileDocument.of(file, offset)


@router.patch(
    "/files/{file_id}",
    status_code=204,
    response_class=Response,
    responses={**described(404, 409), 204: {"headers": {"Upload-Offset": {"schema": {"type": "integer"}}}}},
    openapi_extra=BYTES,
)
async def send(
    file_id: str,
    request: Request,
    service: ServiceOf,
    caller: Submitter,
    upload_offset: Annotated[
        int,
        Header(
            ge=0, lt=2**62, description="Bytes that were sent before; 409 names the right number when it is another."
        ),
    ],
) -> Response:
    """Send the next chunk of a file."""
    file = await run_in_threadpool(file_of, service, caller, file_id)
    size = await append(service.store, service.settings, file, upload_offset, request.stream())
    return Response(status_code=204, headers={"Upload-Offset": str(size)})


class Completion(BaseModel):
    """The end of an upload."""

    model_config = ConfigDict(extra="forbid")

    sha256: str | None = Field(None, pattern=SHA256, description="Compared with what arrived.")


@apart("fetches", router.post("/files/{file_id}/complete", responses=described(404, 409)))
def complete(file_id: str, body: Completion, service: ServiceOf, caller: Submitter) -> FileDocument:
    """All chunks were sent; recipes can name the file from now on."""
    return FileDocument.of(finish(service.store, service.settings, file_of(service, caller, file_id), body.sha256))


@router.get(
    "/files/{file_id}/content",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        **described(404, 409, 416),
    },
)
def content(file_id: str, service: ServiceOf, caller: Viewer) -> Response:
    """The bytes of a complete file. Ranges are answered."""
    return sent(service, file_of(service, caller, file_id))


def sent(service: Service, file: File) -> Response:
    """The bytes of a file as an answer. Raises Problem while it is not complete, NotFound when they are gone."""
    if file.state != READY:
        raise Problem(409, f"file '{file.id}' is not complete yet", "conflict")
    return FileResponse(
        file_path(service.settings, file),
        media_type="application/octet-stream",
        filename=file.filename,
        headers={"X-Content-Type-Options": "nosniff"},
    )


@router.delete("/files/{file_id}", status_code=204, response_class=Response, responses=described(404, 409))
def delete(file_id: str, service: ServiceOf, caller: Submitter) -> Response:
    """Delete a file that no waiting or running job names."""
    file = file_of(service, caller, file_id)
    refuse_used(service, file)
    discard(service.store, service.settings, file)
    return Response(status_code=204)


def refuse_used(service: Service, file: File) -> None:
    """Raise Problem when a job that has not ended names the file."""
    states = [state for state in State if state not in TERMINAL]
    after = None
    while jobs := service.store.jobs(file.project, states=states, after=after, limit=500):
        after = jobs[-1].id
        user = next(
            (
                job
                for job in jobs
                if file.id in job.request.recipe or any(file.id in each for each in job.request.overrides)
            ),
            None,
        )
        if user is not None:
            raise Problem(
                409, f"job '{user.id}' needs the file; cancel it first, or wait until it has ended", "conflict"
            )
