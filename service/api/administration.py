"""Tokens, projects, hosts, secrets and the audit trail, and who the caller is.

The folders of a server, which nobody who reads events, logs and errors needs to know.

Tokens, projects, hosts and secrets, and who the caller is.

The audit trail for admins, and the middleware that lets the store know whose request it serves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.context import Admin, ServiceOf, Submitter, Viewer
from service.api.documents import HostDocument, Page, TokenDocument, moment, page
from service.api.jobs import LIMIT, clean
from service.api.problems import Problem, described
from service.attempts.environment import stage_cache
from service.safety import secrets as secret_store
from service.safety.redaction import Redactor, of_environment
from service.safety.remote_code import MOST, PINNED
from service.settings import Settings
from service.store.audit import Action, Actor, AuditEntry, acting
from service.store.disk_usage import KINDS, DiskUsage
from service.store.errors import NotFound
from service.store.projects import PROJECT, Project, new_token


def server_folders(settings: Settings, environment: Mapping[str, str] | None = None) -> list[str]:
    """Where jobs, caches, data and code lie, each as it is written and as it is behind links; the longest path
    wins later."""
    environment = os.environ if environment is None else environment
    hub = environment.get("HF_HOME") or str(
        Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    folders = [
        str(settings.home),
        str(stage_cache(settings, environment)),
        *environment.get("FINERY_DATA", "").split(os.pathsep),
        hub,
        environment.get("HF_HUB_CACHE", ""),
        environment.get("HF_DATASETS_CACHE", ""),
        sys.prefix,
        sys.base_prefix,
        str(Path(__file__).parents[2]),
        str(Path.home()),
    ]
    return list(dict.fromkeys(each for folder in folders if folder for each in (folder, os.path.realpath(folder))))


router = APIRouter(tags=["administration"], responses=described())
Pinned = Annotated[str, Field(pattern=f"^{PINNED.pattern}$", max_length=200)]
ProjectName = Annotated[
    str, Field(pattern=f"^{PROJECT.pattern}$", description="Lower-case letters, digits, '-' and '_'.")
]


class Me(BaseModel):
    """Who a token belongs to."""

    token: str
    project: str
    role: Literal["viewer", "submitter", "admin"]


@router.get("/me")
def me(caller: Viewer) -> Me:
    """Who the caller is."""
    return Me(token=caller.token, project=caller.project, role=caller.role)


class NewTokenDocument(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid")

    project: ProjectName | None = Field(None, description="By default the caller's own.")
    role: Literal["viewer", "submitter", "admin"] = "submitter"
    name: str = Field("", max_length=200, description="Whose it is, or what for.", pattern=r"^[^\x00]*$")
    expires: datetime | None = Field(None, description="When it ends by itself, with a time zone.")


class MadeToken(TokenDocument):
    """A token at the only moment when it is shown."""

    token: str


@router.post("/tokens", status_code=201)
def create_token(body: NewTokenDocument, service: ServiceOf, caller: Admin) -> MadeToken:
    """Make a token. It is shown once."""
    if body.expires is not None and body.expires.tzinfo is None:
        raise Problem(422, "expires: needs a time zone, such as 2026-11-21T22:00:00Z", "invalid_request")
    made = new_token()
    token = service.store.add_token(
        made.prefix,
        made.sha256,
        project=body.project or caller.project,
        role=body.role,
        name=body.name,
        expires=body.expires.timestamp() if body.expires else None,
    )
    return MadeToken(token=made.text, **TokenDocument.of(token).model_dump())


@router.get("/tokens")
def tokens(
    service: ServiceOf, caller: Admin, project: Annotated[str | None, Query(max_length=40)] = None
) -> list[TokenDocument]:
    """All tokens, oldest first, revoked ones among them."""
    return [TokenDocument.of(token) for token in service.store.tokens(clean(project))]


@router.delete("/tokens/{token_id}", responses=described(404))
def revoke(token_id: str, service: ServiceOf, caller: Admin) -> TokenDocument:
    """End a token for good, at once."""
    return TokenDocument.of(service.store.revoke_token(clean(token_id) or ""))


class UsageDocument(BaseModel):
    """What a project keeps on the disk, in bytes. All but the files and the evals is measured every few
    seconds."""

    total: int
    limit: int | None = Field(description="What it may keep; null for no limit.")
    files: int = Field(description="Uploads, those on their way included.")
    jobs: int = Field(description="Folders of jobs: run folders, checkpoints, logs.")
    models: int = Field(description="Published models.")
    evals: int = Field(description="Evals and their runs, with every row that a run holds.")
    stages: int = Field(description="Finished stages that later jobs can reuse.")
    downloads: int = Field(description="What its jobs took from the Hub.")

    @classmethod
    def of(cls, usage: DiskUsage) -> UsageDocument:
        fields = {name: getattr(usage, name) for name in KINDS}
        return cls(total=usage.total, limit=usage.limit, **fields)


class KeptThingDocument(BaseModel):
    """Something that takes room."""

    kind: Literal["files", "jobs", "models", "evals"]
    id: str
    name: str
    bytes: int


class ProjectUsageDocument(UsageDocument):
    """What one project keeps on the disk, and what takes the most."""

    project: str
    largest: list[KeptThingDocument]


class ProjectDocument(BaseModel):
    """A project and its limits."""

    name: str
    weight: float
    max_gpus: int | None
    max_running: int | None
    max_queued: int | None
    max_bytes: int | None
    usage: UsageDocument
    remote_code: list[str]
    created: datetime

    @classmethod
    def of(cls, project: Project, usage: DiskUsage) -> ProjectDocument:
        return cls(
            name=project.name,
            weight=project.weight,
            max_gpus=project.max_gpus,
            max_running=project.max_running,
            max_queued=project.max_queued,
            max_bytes=project.max_bytes,
            usage=UsageDocument.of(usage),
            remote_code=list(project.settings.get("remote_code", ())),
            created=moment(project.created),
        )


class Limits(BaseModel):
    """A project's new limits; those that are left out stay, null lifts one."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(1.0, gt=0, le=1e6, description="Share of the hosts beside other projects that wait.")
    max_gpus: int | None = Field(None, ge=0, le=2**31 - 1)
    max_running: int | None = Field(None, ge=0, le=2**31 - 1)
    max_queued: int | None = Field(None, ge=0, le=2**31 - 1)
    max_bytes: int | None = Field(
        None,
        ge=0,
        le=2**62,
        description="On the disk: files, folders of jobs, models, evals, finished stages, downloads.",
    )
    remote_code: list[Pinned] | None = Field(
        None,
        max_length=MOST,
        description=(
            "Repositories whose Python code the project's recipes may run (model.trust_remote_code): "
            "owner/name@COMMIT, all 40 digits."
        ),
    )


@router.get("/projects")
def projects(service: ServiceOf, caller: Admin) -> list[ProjectDocument]:
    """All projects."""
    usages = {usage.project: usage for usage in service.store.disk_usages()}
    return [
        ProjectDocument.of(project, usages.get(project.name) or DiskUsage(project.name))
        for project in service.store.projects()
    ]


@router.get("/projects/{name}/usage", responses=described(404))
def project_usage(
    name: Annotated[ProjectName, PathParameter()], service: ServiceOf, caller: Viewer
) -> ProjectUsageDocument:
    """What a project keeps on the disk, and what takes the most: the caller's own, for admins any."""
    if caller.scope not in (None, name):
        raise NotFound("project", name)
    service.store.project(name)
    usage, largest = service.store.disk_usage(name), service.store.largest(name)
    return ProjectUsageDocument(
        project=name,
        largest=[KeptThingDocument(**vars(each)) for each in largest],
        **UsageDocument.of(usage).model_dump(),
    )


@router.put("/projects/{name}")
def set_project(
    name: Annotated[ProjectName, PathParameter()], body: Limits, service: ServiceOf, caller: Admin
) -> ProjectDocument:
    """Set the limits of a project, which is made when it is not there."""
    changes: dict[str, Any] = body.model_dump(exclude_unset=True)
    if "remote_code" in changes:
        settings = service.store.ensure_project(name).settings
        changes["settings"] = {**settings, "remote_code": changes.pop("remote_code") or []}
    return ProjectDocument.of(service.store.set_project(name, **changes), service.store.disk_usage(name))


@router.get("/hosts")
def hosts(service: ServiceOf, caller: Admin) -> list[HostDocument]:
    """The machines that run jobs, and who holds their GPUs."""
    holders = service.store.slot_holders()
    return [HostDocument.of(host, holders) for host in service.store.hosts()]


class HostState(BaseModel):
    """What a host may do from now on."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["up", "draining", "down"] = Field(
        description="draining: what runs there goes on, nothing new starts."
    )
    stop: bool = Field(
        False, description="What runs there saves a checkpoint and goes back into the queue: for a host that will end."
    )

    @model_validator(mode="after")
    def _stops_what_may_not_start_there(self) -> HostState:
        if self.stop and self.state != "draining":
            raise ValueError("stop goes with draining: what it stops could start there again")
        return self


@router.post("/hosts/{name}/state", responses=described(404))
def set_host(name: str, body: HostState, service: ServiceOf, caller: Admin) -> list[HostDocument]:
    """Take a host out of service, or back into it."""
    service.store.set_host_state(clean(name) or "", body.state, body.stop)
    service.wake()
    return hosts(service, caller)


HostNames = Annotated[
    list[Annotated[str, Field(max_length=260)]],
    Field(
        max_length=secret_store.MOST_HOSTS,
        description="Hosts that may see it: `api.example.com` for https, `judge.internal:8000` for another port.",
    ),
]
Value = Annotated[str, Field(min_length=1, max_length=secret_store.LONGEST, pattern=r"^[^\x00]*$")]


class Secret(BaseModel):
    """A secret's value, which is never shown again."""

    model_config = ConfigDict(extra="forbid")

    value: Value
    hosts: HostNames | None = Field(
        None, description="By default wherever the recipes of the project say, HF_TOKEN to the Hub only."
    )


@router.get("/secrets", tags=["secrets"])
def secrets(service: ServiceOf, caller: Viewer) -> list[str]:
    """The names of the project's secrets. A submission lists those that its job needs under `secrets`."""
    return secret_store.names(service.settings, caller.project)


@router.put("/secrets/{name}", status_code=204, response_class=Response, tags=["secrets"])
def put_secret(name: str, body: Secret, service: ServiceOf, caller: Submitter) -> Response:
    """Keep a secret for the jobs of the project: HF_TOKEN and other known keys, or a name that begins with SECRET_."""
    settings, project = service.settings, caller.project
    hosts = None if body.hosts is None else tuple(body.hosts)
    service.store.record(
        "secret.put",
        "secret",
        name,
        project,
        doing=lambda: secret_store.put(settings, project, name, body.value, hosts),
    )
    refresh(service)
    return Response(status_code=204)


@router.delete("/secrets/{name}", status_code=204, response_class=Response, tags=["secrets"], responses=described(404))
def delete_secret(name: str, service: ServiceOf, caller: Submitter) -> Response:
    """Forget a secret."""
    settings, project = service.settings, caller.project
    service.store.record(
        "secret.delete", "secret", name, project, doing=lambda: secret_store.delete(settings, project, name)
    )
    return Response(status_code=204)


class ServerSecret(BaseModel):
    """A secret of the server, and who gets it."""

    name: str
    projects: list[str] = Field(description="Whose jobs get it; nobody's where there are none.")
    hosts: list[str] = Field(description="The hosts that may see it; HF_TOKEN always goes to the Hub.")
    present: bool = Field(description="Whether the server has a value.")

    @classmethod
    def of(cls, binding: secret_store.Binding) -> ServerSecret:
        return cls(
            name=binding.name,
            projects=list(binding.projects),
            hosts=list(binding.hosts),
            present=secret_store.server_value(binding) is not None,
        )


class ServerSecretBinding(BaseModel):
    """Who gets a secret of the server from now on."""

    model_config = ConfigDict(extra="forbid")

    projects: list[ProjectName] = Field(max_length=MOST)
    hosts: HostNames = Field(default_factory=list)
    value: Value | None = Field(
        None, description="By default what was put before, else the variable FINERY_SECRET_<NAME> of the server."
    )


@router.get("/server-secrets", tags=["secrets"])
def server_secrets(service: ServiceOf, caller: Admin) -> list[ServerSecret]:
    """The server's own secrets, those that no project gets among them. Values are never shown."""
    return [ServerSecret.of(each) for each in secret_store.bindings(service.settings).values()]


@router.put("/server-secrets/{name}", tags=["secrets"])
def bind_server_secret(name: str, body: ServerSecretBinding, service: ServiceOf, caller: Admin) -> ServerSecret:
    """Give a secret of the server to the jobs of these projects, which send it to these hosts only."""
    projects, hosts = tuple(body.projects), tuple(body.hosts)
    made = service.store.record(
        "secret.bind",
        "secret",
        name,
        None,
        doing=lambda: secret_store.bind(service.settings, name, projects, hosts, body.value),
        projects=",".join(projects),
        hosts=",".join(hosts),
    )
    assert made is not None
    refresh(service)
    return ServerSecret.of(made)


@router.delete(
    "/server-secrets/{name}", status_code=204, response_class=Response, tags=["secrets"], responses=described(404)
)
def unbind_server_secret(name: str, service: ServiceOf, caller: Admin) -> Response:
    """Forget who gets a secret of the server, and its value if an admin put one. What the server's settings bind
    is bound as they say again."""
    service.store.record(
        "secret.unbind", "secret", name, None, doing=lambda: secret_store.unbind(service.settings, name)
    )
    return Response(status_code=204)


def refresh(service: ServiceOf) -> None:
    """Let what is shown be redacted by the newest secrets too; older ones stay hidden until the service starts
    again."""
    service.redactor = Redactor(
        [*of_environment(), *secret_store.values(service.settings)], server_folders(service.settings)
    )


class Acting:
    """Middleware that gives each request an actor of its own, nobody until its token is known."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with acting(Actor("", scope=scope)):
            await self.app(scope, receive, send)


class AuditDocument(BaseModel):
    """One thing that somebody did."""

    id: str
    time: datetime
    action: str
    actor: str
    """Id of the token, `finery` for the server itself, `console` for a command on its machine, empty where nobody
    was known."""
    role: str
    actor_project: str
    address: str
    request: str
    """The request's id, as its log line has it."""
    kind: str
    thing: str
    project: str | None
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditDocument:
        return cls(**{**vars(entry), "time": moment(entry.time), "details": dict(entry.details)})


@router.get("/audit")
def trail(
    service: ServiceOf,
    caller: Admin,
    action: Annotated[Action | None, Query(description="What was done.")] = None,
    actor: Annotated[str | None, Query(max_length=64, description="Id of a token, `finery` or `console`.")] = None,
    project: Annotated[str | None, Query(max_length=64, description="That the thing belongs to.")] = None,
    thing: Annotated[str | None, Query(max_length=200, description="Id or name of what was acted on.")] = None,
    since: Annotated[datetime | None, Query(description="Not before, with a time zone.")] = None,
    until: Annotated[datetime | None, Query(description="Before, with a time zone.")] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    limit: int = LIMIT,
) -> Page[AuditDocument]:
    """Who did what, newest first: jobs, files, models, secrets, tokens, projects, hosts and sign-ins."""
    for name, given in (("since", since), ("until", until)):
        if given is not None and given.tzinfo is None:
            raise Problem(422, f"{name}: needs a time zone, such as 2026-11-21T22:00:00Z", "invalid_request")
    entries = service.store.audit(
        action=action,
        actor=clean(actor),
        project=clean(project) or caller.scope,
        thing=clean(thing),
        after=clean(after),
        limit=limit,
        since=since.timestamp() if since else None,
        until=until.timestamp() if until else None,
    )
    return page([AuditDocument.of(entry) for entry in entries], limit, entries[-1].id if entries else None)
