"""`finery try`: the page of the service on which a model is tried, for one folder, without a service.

No database, no token: it listens on this machine alone, is answered by no other name (the header Host), and its forms
carry a secret of this start. The model lives in a process of its own, isolated where this machine can, as in a service.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse

from pipelines.core.errors import EXIT_DONE, CommandError
from pipelines.core.files import RECORD
from pipelines.core.model_abilities import abilities_of
from service import logs
from service.api.app import BODY_BYTES, KnownHosts, SafeHeaders, refuse_body
from service.api.connections import listen, raise_file_limit, server_of
from service.api.limits import BodyLimit
from service.executors.isolation import Isolation, isolation_of
from service.safety.redaction import Redactor, of_environment
from service.serving.processes import ModelProcesses
from service.settings import Settings, read_settings
from service.store.errors import NotFound
from service.store.models import PublishedModel
from service.web.access import check_form, choose_theme, new_router
from service.web.rendering import HEADERS, STATIC, Assets
from service.web.sessions import Visitor
from service.web.trying import router as try_router
from service.web.trying import unaskable

HOST = "127.0.0.1"


@dataclass(frozen=True)
class FolderHost:
    """One folder, and everybody at this machine. It stands for the sessions of a service too: there is one visitor."""

    settings: Settings
    served: ModelProcesses
    folder: PublishedModel
    visitor: Visitor
    redactor: Redactor
    local: ClassVar[bool] = True

    def read(self, cookie: str | None) -> Visitor:
        """The one visitor, whatever a cookie says."""
        return self.visitor

    def looking(self, request: Request) -> Visitor:
        return self.visitor

    async def sending(self, request: Request) -> Visitor:
        await check_form(request, self.visitor)
        return self.visitor

    def model(self, visitor: Visitor, model_id: str) -> PublishedModel:
        if model_id not in (self.folder.id, self.folder.name):
            raise NotFound("model", model_id)
        return self.folder

    def refusal(self, visitor: Visitor, model: PublishedModel) -> str:
        return ""

    def token(self, visitor: Visitor) -> str:
        return "here"

    def redacted(self, text: str) -> str:
        return self.redactor.text(text)


def try_folder(folder: Path, port: int, gpus: str, isolation: str, as_json: bool) -> int:
    """Serve the page until a signal. Raises CommandError when there is nothing to try."""
    model = model_in(folder)
    with tempfile.TemporaryDirectory(prefix="finery-try-") as home:
        settings = read_settings(
            {}, home=Path(home), host=HOST, port=port, serve_models=1, serve_gpus=gpus, isolation=isolation
        )
        force = isolation_of(settings.isolation)
        listener = listen(settings.host, settings.port)
        logs.configure("text", "warning")
        processes = ModelProcesses(settings)
        try:
            _serve(local_app(settings, processes, model), settings, listener, model, as_json, force)
        finally:
            listener.close()
            processes.close()
    return EXIT_DONE


def model_in(given: Path) -> PublishedModel:
    """The model of a published folder, or of a stage's. Raises CommandError."""
    folder = given.expanduser().absolute()
    if not folder.is_dir():
        raise CommandError(f"'{given}' is no folder; give a published one, such as registry/NAME")
    if (folder / RECORD).is_file() and (folder / "model").is_dir():
        folder = folder / "model"
    if (folder / "stages").is_dir():
        raise CommandError(
            f"'{given}' is a run with several stages; give what it published, such as registry/NAME, or a stage, such "
            f"as {given}/stages/01-ID"
        )
    identity = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    name = folder.name if folder.name != "model" else folder.parent.name
    model = PublishedModel(f"model-{identity}", "", name, identity, "", str(folder))
    if abilities_of(folder) is None:
        raise CommandError(
            f"'{given}' holds no model that can be tried: no config.json that names one; give a published folder, such "
            "as registry/NAME"
        )
    if why := unaskable(model):
        raise CommandError(f"'{given}' cannot be tried: {why[:1].lower()}{why[1:].rstrip('.')}")
    return model


def local_app(settings: Settings, processes: ModelProcesses, model: PublishedModel) -> FastAPI:
    """The page of one folder, with the headers and limits of a service."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    visitor = Visitor(nonce="", csrf=secrets.token_hex(32))
    host = FolderHost(settings, processes, model, visitor, Redactor(of_environment()))
    app.state.service = app.state.try_host = app.state.web_sessions = host
    own = new_router()

    @own.get("/")
    def start() -> RedirectResponse:
        """There is one page."""
        return RedirectResponse(f"/models/{model.id}/try", 303, HEADERS)

    own.add_api_route("/theme", choose_theme, methods=["POST"])
    app.include_router(own)
    app.include_router(try_router)
    app.mount("/static", Assets(directory=STATIC), name="static")
    app.add_middleware(BodyLimit, limit_of=lambda scope: BODY_BYTES, refuse=refuse_body)
    app.add_middleware(KnownHosts)
    app.add_middleware(SafeHeaders)
    return app


def _serve(
    app: FastAPI,
    settings: Settings,
    listener: socket.socket,
    model: PublishedModel,
    as_json: bool,
    force: Isolation,
) -> None:
    server = server_of(app, settings, raise_file_limit())

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    if as_json:
        print(json.dumps({"url": url, "model": model.path, "isolation": force.document()}), flush=True)
    else:
        print(f"Try {model.name} at {url}\nCtrl-C ends it.", flush=True)
    if not force.kept:
        print(
            "Nothing isolates the model's process from your files on this machine; try folders of people you trust.",
            file=sys.stderr,
            flush=True,
        )
    server.run(sockets=[listener])
