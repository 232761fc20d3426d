"""The service's settings: from the command's arguments, else from `FINERY_…` variables, else their defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipelines.errors import CommandError
from service.safety.remote_code import MOST, PINNED

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
    """Database, uploads, jobs and models. `FINERY_SERVICE_HOME`, because FINERY_HOME is where finished stages are kept."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network."""
    port: int = Field(8321, ge=0, le=65535)
    """0 takes a free one."""
    database_url: str = ""
    """`postgresql://user@host/name` or `sqlite:////path`; empty for `sqlite:///HOME/finery.db`."""
    executor: Literal["local", "docker", "ray"] = "local"
    """What runs the attempts."""
    docker_host: str = "unix:///var/run/docker.sock"
    """Where the Docker engine listens, for the docker executor: `unix:///path` or `tcp://host:port`."""
    image: str = "finery:latest"
    """The image that the docker executor starts attempts from; the one that the service itself runs in."""
    ray_address: str = ""
    """`host:port` of a Ray cluster's head, for the ray executor; empty for the one on this machine."""
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
    max_recipe_bytes: int = Field(MEGABYTE, ge=1)
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
    """Repositories whose Python code submitted recipes may run, `owner/name@COMMIT` with all 40 digits; several by commas."""

    private_endpoints: bool = False
    """Whether jobs may ask judges in networks that the server stands in, such as a model server on the same machine."""
    audit_days: float = Field(365.0, gt=0)
    """Rows of the audit trail that are older are deleted."""

    @field_validator("allow_remote_code", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("allow_remote_code")
    @classmethod
    def _pinned(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if PINNED.fullmatch(each) is None:
                raise ValueError(f"'{each}' must be owner/name@COMMIT, the commit with all 40 hexadecimal digits")
        return value

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

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
    return f"{source} is {mistake['input']!r}: {message[0].lower()}{message[1:]}"
