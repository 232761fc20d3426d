"""The service's settings: from the command's arguments, else from `FINERY_…` variables, else their defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipelines.core.errors import CommandError
from service.executors.registry import EXECUTORS, either
from service.safety.remote_code import MOST, PINNED
from service.safety.secrets import binding_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
MEGABYTE = 1 << 20
GIGABYTE = 1 << 30


def default_home() -> Path:
    """Where a service keeps its jobs: `$FINERY_HOME/service`, else the user's data folder (a cache may be emptied)."""
    given = os.environ.get("FINERY_HOME")
    if given:
        return Path(given).expanduser() / "service"
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "finery"


class Settings(BaseModel):
    """How one server behaves. Every field has a variable: `FINERY_` and its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(default_factory=default_home)
    """Database, uploads, jobs and models. `FINERY_SERVICE_HOME`, because FINERY_HOME is where finished stages are
    kept."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network."""
    port: int = Field(8321, ge=0, le=65535)
    """0 takes a free one."""
    database_url: str = ""
    """`postgresql://user@host/name` or `sqlite:////path`; empty for `sqlite:///HOME/finery.db`."""
    executor: str = "local"
    """What runs the attempts: a name of `service.executors.registry`."""
    docker_host: str = "unix:///var/run/docker.sock"
    """Where the Docker engine listens, for the docker executor: `unix:///path` or `tcp://host:port`."""
    image: str = "finery:latest"
    """The image that the docker executor starts attempts from; the one that the service itself runs in."""
    ray_address: str = ""
    """`host:port` of a Ray cluster's head, for the ray executor; empty for the one on this machine."""
    slurm_partition: str = ""
    """The partition whose nodes the slurm executor uses; empty for Slurm's default one."""
    slurm_account: str = ""
    """The account that its jobs are charged to; empty for the user's default one."""
    slurm_options: str = ""
    """More options for sbatch, such as `qos=high constraint=a100`, from a list that the slurm executor allows."""
    cpus: int | None = Field(None, ge=1)
    """Processor cores that jobs may use at once; None for all. A job on a CPU takes one unless it asks for more."""
    gpus: str | None = None
    """Indices of the GPUs that jobs may use, such as `0,1`; None for all that are found, an empty text for none."""
    memory: int | None = Field(None, ge=1)
    """Bytes of main memory that jobs may use; None for all."""
    lease_seconds: float = Field(30.0, gt=0)
    """A server that has not renewed its leases for this long is taken for dead."""
    stop_seconds: float = Field(120.0, ge=0)
    """How long an attempt may take to save a checkpoint when it is asked to stop; then it is killed."""
    max_retries: int = Field(3, ge=0)
    """How often a job is tried again after an error that may pass."""
    max_queued: int = Field(20_000, ge=1)
    """Jobs of one project that may wait at once, unless the project has a limit of its own."""
    max_file_bytes: int = Field(8 * GIGABYTE, ge=1)
    max_project_bytes: int = Field(64 * GIGABYTE, ge=1)
    """Uploaded files of one project, together."""
    requests_per_second: float = Field(50.0, gt=0)
    """Of one token, sustained."""
    burst: int = Field(200, ge=1)
    """Requests that one token may send at once."""
    log_bytes: int = Field(64 * MEGABYTE, ge=1)
    """Of one attempt's console log, before the oldest part is dropped."""
    upload_seconds: float = Field(7 * 24 * 3600.0, gt=0)
    """An upload that nothing was added to for so long is deleted, unless it was completed."""
    allow_remote_code: tuple[str, ...] = Field((), max_length=MOST)
    """Repositories whose Python code submitted recipes may run, `owner/name@COMMIT` with all 40 digits; several by
    commas."""

    max_seconds: float | None = Field(None, gt=0)
    """How long a job may run, all its attempts together; a job may ask for less. None for no limit."""
    stall_seconds: float = Field(3600.0, ge=0)
    """An attempt that was not heard of for so long is stopped and tried again; 0 to wait for ever."""
    ttl_seconds_after_finished: float | None = Field(None, ge=0)
    """How long jobs are kept after their end, unless they say so themselves; None for ever. Published models stay."""
    private_endpoints: bool = False
    """Whether jobs may ask judges in networks that the server stands in, such as a model server on the same machine."""
    isolation: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"
    """What keeps attempts apart from the server and from each other; `auto` takes the strongest that works here."""
    warm: int = Field(1, ge=0, le=64)
    """Processes that the local executor keeps with torch and transformers imported, each about 0.5 GB, so that the
    jobs of as many projects begin at once; 0 for none. Models that are served have one more. Attempts under bubblewrap
    always start anew."""
    docker_network: str = "bridge"
    """The engine's network that the docker executor's containers join: `none`, or one whose firewall keeps them
    from the host."""
    attempt_memory: int | None = Field(None, ge=0)
    """Bytes of main memory for an attempt whose job names no limit; None for its share of the host, 0 for no limit."""
    stage_seconds: float = Field(30 * 24 * 3600.0, gt=0)
    """A finished stage that no job's folder leads to is deleted when it is older."""
    model_grace_days: float = Field(7.0, ge=0)
    """How long a deleted version of a model can be restored; then its files are deleted."""
    audit_days: float = Field(365.0, gt=0)
    """Rows of the audit trail that are older are deleted."""

    server_secrets: tuple[str, ...] = Field((), max_length=MOST)
    """The server's own secrets that projects get: `NAME:project+project@host+host`, several by commas. Nobody gets
    one that is not bound."""

    serve_idle: float = Field(900.0, gt=0)
    """A process that serves a published model ends when it was asked nothing for so many seconds."""
    serve_models: int = Field(2, ge=0, le=64)
    """Models that are served at once, each by a process of its own; 0 serves none."""
    serve_memory: int | None = Field(None, ge=0)
    """Bytes of main memory for each of these processes; None for 4 GiB and four times the size of the model's files,
    0 for no limit."""
    serve_gpus: str = ""
    """Indices of the GPUs that they use, such as `0`; empty for the processor alone. Keep jobs off them with `gpus`."""
    serve_requests: int = Field(32, ge=1)
    """Questions to models that one token may have open at once."""
    serve_seconds: float = Field(600.0, gt=0)
    """How long one question may take, the start of the process left aside."""

    check_workers: int = Field(2, ge=2, le=64)
    """Processes that check recipes; one caller has at most all but one of them."""
    check_seconds: float = Field(10.0, gt=0)
    """How long checking one recipe may take."""
    check_memory: int = Field(512 * MEGABYTE, ge=16 * MEGABYTE)
    """Bytes that checking one recipe may take."""

    max_connections: int = Field(2_000, ge=8)
    """Open at once; never more than half of the files that the process may open."""
    max_connections_per_address: int = Field(200, ge=1)
    """Of one address that is no trusted proxy."""
    header_seconds: float = Field(10.0, gt=0)
    """How long a client may take to send a request's headers."""
    idle_seconds: float = Field(30.0, ge=1)
    """How long a connection stays open between two requests."""
    disk_reserve: int = Field(256 * MEGABYTE, ge=0)
    """Bytes of the home's disk below which no new jobs and files are taken."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count; several by commas."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may be sent to (the header Host), several by commas; `*` for any. Empty: localhost where
    the server listens on loopback, so that no page elsewhere reaches it by a name of its own, else any."""
    log_format: Literal["text", "json"] = "text"
    """How the lines of the log are written."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written; `info` has one for each request."""

    @field_validator("server_secrets")
    @classmethod
    def _bound(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                binding_of(each)
            except CommandError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("executor")
    @classmethod
    def _a_known_executor(cls, name: str) -> str:
        if name not in EXECUTORS:
            raise ValueError(f"input should be {either(map(repr, EXECUTORS))}")
        return name

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if value and not value.startswith(("postgresql://", "postgres://", "postgresql+psycopg://", "sqlite:///")):
            raise ValueError("must begin with postgresql:// or sqlite:///; other databases are not supported")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ip_network(each, strict=False)
            except ValueError:
                raise ValueError(f"'{each}' must be an address or a network such as 10.0.0.0/8") from None
        return value

    @field_validator("allow_remote_code", "server_secrets", "trusted_proxies", "allowed_hosts", mode="before")
    @classmethod
    def _listed(cls, value: object) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("allow_remote_code")
    @classmethod
    def _pinned(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if PINNED.fullmatch(each) is None:
                raise ValueError(f"'{each}' must be owner/name@COMMIT, the commit with all 40 hexadecimal digits")
        return value

    @field_validator("docker_network")
    @classmethod
    def _apart(cls, value: str) -> str:
        if not value or value in ("host", "default") or ":" in value:
            raise ValueError(
                f"'{value}' is no network of its own; name `bridge`, `none`, or one that `docker network create` made"
            )
        return value

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def host_names(self) -> frozenset[str] | None:
        """Names that requests may be sent to, in small letters; None for any."""
        if "*" in self.allowed_hosts:
            return None
        own = self.host.strip("[]").lower()
        loopback = own in LOOPBACK or own.startswith("127.")
        if not self.allowed_hosts and not loopback:
            return None
        named = {each.strip("[]").rstrip(".").lower() for each in self.allowed_hosts}
        return frozenset(named | (LOOPBACK | {own} if loopback else set()))

    @property
    def url(self) -> str:
        """The database as SQLAlchemy wants it, with the driver that is installed."""
        if not self.database_url:
            return f"sqlite:///{self.home / 'finery.db'}"
        for written in ("postgres://", "postgresql://"):
            if self.database_url.startswith(written):
                return "postgresql+psycopg://" + self.database_url.removeprefix(written)
        return self.database_url

    @property
    def files(self) -> Path:
        """Uploaded files, a folder for each project."""
        return self.home / "files"

    @property
    def jobs(self) -> Path:
        """Job folders."""
        return self.home / "jobs"

    @property
    def serving(self) -> Path:
        """What the processes that serve models write, a folder for each; empty between two starts."""
        return self.home / "serving"

    @property
    def models(self) -> Path:
        """Published models: `<project>/<name>/<fingerprint>`."""
        return self.home / "models"


def read_settings(environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Settings from arguments (None means not given), then variables, then defaults.

    Raises CommandError with every mistake in one sentence each.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for name in Settings.model_fields:
        variable = variable_of(name)
        if given.get(name) is not None:
            values[name] = given[name]
        elif variable in environment:
            values[name] = environment[variable]
    unknown = set(given) - set(Settings.model_fields)
    if unknown:
        raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
    try:
        return Settings(**values)
    except ValidationError as error:
        raise CommandError("\n".join(_sentence(dict(mistake), given) for mistake in error.errors())) from None


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return "FINERY_SERVICE_HOME" if name == "home" else f"FINERY_{name.upper()}"


def _sentence(mistake: dict[str, Any], given: Mapping[str, Any]) -> str:
    name = str(mistake["loc"][0])
    source = f"--{name.replace('_', '-')}" if given.get(name) is not None else variable_of(name)
    message = mistake["msg"].removeprefix("Value error, ")
    given_value = re.sub(r"//[^/@]*@", "//…@", str(mistake["input"])) if name == "database_url" else mistake["input"]
    return f"{source} is {given_value!r}: {message[0].lower()}{message[1:]}"
