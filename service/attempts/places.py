"""What an isolated attempt sees of the service's files: its own job's parts, and what its recipe names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy.engine import make_url

from service.attempts.environment import stage_cache
from service.attempts.folders import INPUTS, PUBLISHED, Folders
from service.executors.protocol import Sandbox
from service.settings import Settings

POSTGRESQL = 5432
HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")


def sandbox_of(settings: Settings, folders: Folders, attempt_id: str, environment: Mapping[str, str], checkpoints: Iterable[Path]) -> Sandbox:
    """The places of one attempt. `environment` is its own: it names its stage cache, the shared stages and the Hub's cache."""
    hub = [environment[name] for name in HUB if environment.get(name)]
    own = [path for path in hub if Path(path).is_relative_to(settings.home)]
    read = [
        folders.recipe, folders.job / INPUTS, folders.record(attempt_id) / "secrets", *checkpoints, *(path for path in hub if path not in own),
        *filter(None, [environment.get("FINERY_SHARED_STAGES")]),
    ]  # fmt: skip
    write = [folders.job / "runs", folders.job / PUBLISHED, environment["FINERY_HOME"], *own]
    database = make_url(settings.url)
    hidden: list[Path | str] = [settings.home, stage_cache(settings)]
    if database.get_backend_name() == "sqlite":
        hidden += [f"{database.database}{ending}" for ending in ("", "-wal", "-shm", "-journal")]
    ports = [settings.port, POSTGRESQL if database.port is None else database.port]
    return Sandbox(
        read=tuple(map(str, read)), write=tuple(map(str, write)), hidden=tuple(map(str, hidden)),
        private_endpoints=settings.private_endpoints, refused_ports=tuple(port for port in ports if port),
    )  # fmt: skip
