"""Secrets of a project, `HOME/secrets/<project>/<NAME>` with mode 0600: written and named over the API, never read back."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pipelines.errors import CommandError
from service.settings import Settings
from service.store.errors import NotFound

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
LONGEST = 16_384
RESERVED = re.compile(r"(LD_|PYTHON|FINERY_|CUDA_|OMP_)\w*|PATH|HOME|SHELL|IFS|BASH_ENV|ENV|HF_HOME|HF_ENDPOINT|HF_HUB_CACHE")
"""Variables that change how a process runs: no secret may take their names."""


def folder(settings: Settings, project: str) -> Path:
    """Where a project's secrets lie."""
    return settings.home / "secrets" / project


def names(settings: Settings, project: str) -> list[str]:
    """The names of a project's secrets."""
    place = folder(settings, project)
    return sorted(path.name for path in place.iterdir() if NAME.fullmatch(path.name)) if place.is_dir() else []


def values(settings: Settings) -> list[str]:
    """Every secret of every project, for taking them out of what is shown."""
    root = settings.home / "secrets"
    return [path.read_text(encoding="utf-8") for path in root.glob("*/*") if NAME.fullmatch(path.name)] if root.is_dir() else []


def put(settings: Settings, project: str, name: str, value: str) -> None:
    """Keep a secret, in place of an older one of that name. Raises CommandError."""
    if NAME.fullmatch(name) is None or RESERVED.fullmatch(name) is not None:
        raise CommandError(f"'{name}' cannot name a secret: it must match {NAME.pattern} and be no variable that changes how a process runs")
    if not value.strip() or len(value) > LONGEST or "\x00" in value:
        raise CommandError(f"a secret has 1 to {LONGEST} characters, none of them the character 0")
    place = folder(settings, project)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = place / f".{name}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(value.strip())
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(place / name)


def delete(settings: Settings, project: str, name: str) -> None:
    """Forget a secret. Raises NotFound."""
    if NAME.fullmatch(name) is None or not (folder(settings, project) / name).is_file():
        raise NotFound("secret", name)
    (folder(settings, project) / name).unlink()
