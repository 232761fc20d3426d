"""Secrets of projects and of the server: in a name space of their own, written and named over the API, never read back.

A project's lie in `HOME/secrets/<project>/<NAME>` with mode 0600, and beside one, in `<NAME>.hosts`, the hosts that
may see it. The server's own are variables `FINERY_SECRET_<NAME>` (and HF_TOKEN as itself), or values that an admin
put: no job gets one unless an admin bound it to the job's project, and it is sent to no host but those that the
binding names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pipelines.core.errors import CommandError
from pipelines.core.secrets import HOSTS
from service.executors.records import read_record, write_file, write_record
from service.store.errors import NotFound
from service.store.projects import PROJECT

if TYPE_CHECKING:
    from service.settings import Settings

KNOWN = frozenset((
    "HF_TOKEN", "WANDB_API_KEY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY", "COHERE_API_KEY", "GROQ_API_KEY", "TOGETHER_API_KEY", "FIREWORKS_API_KEY", "DEEPSEEK_API_KEY",
    "OPENROUTER_API_KEY", "PERPLEXITY_API_KEY", "XAI_API_KEY", "AZURE_OPENAI_API_KEY", "NVIDIA_API_KEY",
    "CEREBRAS_API_KEY",
))  # fmt: skip
"""Credentials, or addresses that go with them, and nothing more, to every library that knows them."""
PREFIX = "SECRET_"
NAME = re.compile(rf"(?:{'|'.join(sorted(KNOWN))}|{PREFIX}[A-Z0-9_]{{1,57}})")
"""Every name that a secret may have. A list of names that are forbidden could never be complete."""
LONGEST = 16_384
MOST_HOSTS = 50
HOST = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?"
)
"""`api.example.com` for https at its usual port, `judge.internal:8000` for another, with or without TLS."""
SERVER = ".server"
"""The folder of bindings; no project can have this name."""
VARIABLE = "FINERY_SECRET_"


@dataclass(frozen=True)
class SecretValue:
    """What an attempt is given."""

    value: str = field(repr=False)
    hosts: tuple[str, ...] | None = None
    """The hosts that may see it; None for wherever the recipe of its owner says."""


@dataclass(frozen=True)
class Binding:
    """Which projects get a secret of the server, and which hosts may see it."""

    name: str
    projects: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    value: str = field(default="", repr=False)
    """Put by an admin; empty for that of the environment."""


def is_name(text: str) -> bool:
    """Whether a text may name a secret."""
    return NAME.fullmatch(text) is not None


def unfit_name(text: str) -> str:
    """The sentence for a text that names none."""
    return (
        f"'{text[:80]}' cannot name a secret: take {PREFIX} and capitals, digits or '_' ({PREFIX}MY_JUDGE), or one "
        f"of {', '.join(sorted(KNOWN))}"
    )


def folder(settings: Settings, project: str) -> Path:
    """Where a project's secrets lie."""
    return settings.home / "secrets" / project


def names(settings: Settings, project: str) -> list[str]:
    """The names of a project's secrets. Files of other names, which older versions took, are none."""
    place = folder(settings, project)
    return sorted(path.name for path in place.iterdir() if is_name(path.name)) if place.is_dir() else []


def values(settings: Settings) -> list[str]:
    """Every secret that the service keeps, for taking them out of what is shown: those of names that are no longer
    taken among them."""
    root = settings.home / "secrets"
    files = (
        [path for path in root.glob("[!.]*/[!.]*") if path.suffix != HOSTS and path.is_file()] if root.is_dir() else []
    )
    stored = [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]
    return [*stored, *(binding.value for binding in _put_bindings(settings).values() if binding.value)]


def put(settings: Settings, project: str, name: str, value: str, hosts: tuple[str, ...] | None = None) -> None:
    """Keep a secret, in place of an older one of that name and its hosts. Raises CommandError."""
    if not is_name(name):
        raise CommandError(unfit_name(name))
    _check_value(value)
    listed = None if hosts is None else checked_hosts(hosts)
    place = folder(settings, project)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    (place / name).unlink(missing_ok=True)  # killed here, there is no secret: never an old one for new hosts
    (place / f"{name}{HOSTS}").unlink(missing_ok=True)
    if listed is not None:
        write_file(str(place), f"{name}{HOSTS}", ("\n".join(listed)).encode())
    write_file(str(place), name, (value.strip()).encode())


def delete(settings: Settings, project: str, name: str) -> None:
    """Forget a secret. Raises NotFound."""
    place = folder(settings, project)
    if not is_name(name) or not (place / name).is_file():
        raise NotFound("secret", name)
    (place / name).unlink()
    (place / f"{name}{HOSTS}").unlink(missing_ok=True)


def given(settings: Settings, project: str, name: str, outer: Mapping[str, str] | None = None) -> SecretValue | None:
    """What a job of the project gets under a name: the project's own, else the server's where it is bound to the
    project.

    HF_TOKEN is sent to the Hub, and elsewhere only where hosts are listed.
    """
    outer = os.environ if outer is None else outer
    if not is_name(name):
        return None
    path = folder(settings, project) / name
    secret = None
    if path.is_file():
        listed = path.with_name(f"{name}{HOSTS}")
        secret = SecretValue(
            path.read_text(encoding="utf-8").strip(),
            tuple(listed.read_text(encoding="utf-8").split()) if listed.is_file() else None,
        )
    else:
        binding = bindings(settings).get(name)
        value = server_value(binding, outer) if binding is not None and project in binding.projects else None
        if binding is not None and value:
            secret = SecretValue(value, binding.hosts)
    if secret is not None and name == "HF_TOKEN":
        return SecretValue(secret.value, tuple(dict.fromkeys((*(secret.hosts or ()), hub_host(outer)))))
    return secret


def server_value(binding: Binding, outer: Mapping[str, str] | None = None) -> str | None:
    """The value of a secret of the server, or None where it has none."""
    outer = os.environ if outer is None else outer
    own = outer.get(binding.name) if binding.name == "HF_TOKEN" else None
    return (binding.value or outer.get(f"{VARIABLE}{binding.name}") or own or "").strip() or None


def hub_host(outer: Mapping[str, str]) -> str:
    """The host of the Hub that this server uses, as hosts of secrets are written."""
    parts = urlsplit(outer.get("HF_ENDPOINT") or "https://huggingface.co")
    host = (parts.hostname or "").lower()
    shown = f"[{host}]" if ":" in host else host
    usual = parts.scheme == "https" and parts.port in (None, 443)
    return shown if usual else f"{shown}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def bindings(settings: Settings, outer: Mapping[str, str] | None = None) -> dict[str, Binding]:
    """Every secret of the server by name, those that are bound to nobody among them. What an admin put stands
    before the settings."""
    outer = os.environ if outer is None else outer
    by_name = {
        name: Binding(name)
        for name in (each.removeprefix(VARIABLE) for each in outer if each.startswith(VARIABLE))
        if is_name(name)
    }
    if outer.get("HF_TOKEN"):
        by_name["HF_TOKEN"] = Binding("HF_TOKEN")
    by_name |= {each.name: each for each in map(binding_of, settings.server_secrets)}
    return dict(sorted((by_name | _put_bindings(settings)).items()))


def binding_of(text: str) -> Binding:
    """`NAME:project+project@host+host`, as the settings write a binding. Raises CommandError."""
    name, colon, rest = text.partition(":")
    projects, _, hosts = rest.partition("@")
    if not colon or not projects:
        raise CommandError(
            f"'{text}' binds no secret: write NAME:project@host, such as OPENAI_API_KEY:default@api.openai.com, "
            "several joined by '+'"
        )
    return checked_binding(name, tuple(projects.split("+")), tuple(hosts.split("+")) if hosts else ())


def checked_binding(name: str, projects: tuple[str, ...], hosts: tuple[str, ...], value: str = "") -> Binding:
    """A binding that holds what one must. Raises CommandError."""
    if not is_name(name):
        raise CommandError(unfit_name(name))
    if wrong := next((each for each in projects if PROJECT.fullmatch(each) is None), None):
        raise CommandError(f"'{wrong}' is no project's name, which must match {PROJECT.pattern}")
    if projects and not hosts and name != "HF_TOKEN":
        raise CommandError(
            f"{name} needs the hosts that may see it, such as api.example.com; only HF_TOKEN has one of its own, the "
            "Hub"
        )
    if value:
        _check_value(value)
    return Binding(name, tuple(dict.fromkeys(projects)), checked_hosts(hosts), value.strip())


def checked_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Hosts as they are kept. Raises CommandError."""
    cleaned = tuple(dict.fromkeys(each.strip().lower().rstrip(".") for each in hosts))
    if wrong := next((each for each in cleaned if HOST.fullmatch(each) is None), None):
        raise CommandError(
            f"'{wrong[:80]}' is no host: write api.example.com for https, or judge.internal:8000 for another port; "
            "no scheme and no path"
        )
    if len(cleaned) > MOST_HOSTS:
        raise CommandError(f"a secret is kept for at most {MOST_HOSTS} hosts, these are {len(cleaned)}")
    return cleaned


def bind(
    settings: Settings, name: str, projects: tuple[str, ...], hosts: tuple[str, ...], value: str | None = None
) -> Binding:
    """Give a secret of the server to these projects, for these hosts; a value that is not given stays. Raises
    CommandError."""
    if not is_name(name):
        raise CommandError(unfit_name(name))
    before = _put_bindings(settings).get(name)
    made = checked_binding(name, projects, hosts, before.value if value is None and before is not None else value or "")
    place = folder(settings, SERVER)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_record(str(place), name, {"projects": made.projects, "hosts": made.hosts, "value": made.value})
    return made


def unbind(settings: Settings, name: str) -> None:
    """Forget what an admin put for a secret of the server, its value too. Raises NotFound."""
    place = folder(settings, SERVER) / name
    if not is_name(name) or not place.is_file():
        raise NotFound("binding of a server's secret", name)
    place.unlink()


def _put_bindings(settings: Settings) -> dict[str, Binding]:
    place = folder(settings, SERVER)
    if not place.is_dir():
        return {}
    records: dict[str, Any] = {
        path.name: read_record(place, path.name) for path in place.iterdir() if is_name(path.name)
    }
    return {
        name: Binding(name, tuple(record["projects"]), tuple(record["hosts"]), str(record["value"]))
        for name, record in records.items()
        if record is not None
    }


def _check_value(value: str) -> None:
    if not value.strip() or len(value) > LONGEST or "\x00" in value:
        raise CommandError(f"a secret has 1 to {LONGEST} characters, none of them the character 0")
