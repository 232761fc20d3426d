"""Which isolation this machine gives to attempts: each mode is tried before it is believed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from pipelines.core.errors import CommandError
from service.executors import landlock, sandbox
from service.executors.protocol import Sandbox

Mode = Literal["auto", "bubblewrap", "landlock", "none"]
MODES: tuple[str, ...] = ("bubblewrap", "landlock")
"""In the order in which `auto` tries them."""
REMEDY = (
    "install bubblewrap (`apt install bubblewrap`) or allow user namespaces, use the docker executor, or say "
    "`--isolation none`"
)
_PROBE = (
    "import sys, json; sys.path.insert(0, sys.argv[1]); from service.executors.sandbox import probe; "
    "print(json.dumps(probe(json.load(sys.stdin))))"
)
_WAYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bubblewrap": (("no-user-namespaces",), ()),
    "landlock": (("namespaces", "user"), ("namespaces",), ()),
}
"""The ways to try each mode, the strongest first."""


@dataclass(frozen=True)
class Isolation:
    """What is in force."""

    mode: str
    """`bubblewrap`, `landlock`, `container`, `host` (each host of a cluster its own), or `none`."""
    features: tuple[str, ...] = ()
    landlock_abi: int = 0
    why: str = ""
    """Why it is not a stronger one; empty when there is nothing to say."""

    @property
    def kept(self) -> bool:
        """Whether attempts are kept apart from the server at all."""
        return self.mode != "none"

    @property
    def left_open(self) -> tuple[str, ...]:
        """What an attempt can still do, in short sentences."""
        if self.mode == "none":
            return (
                "attempts read and write all that the server's user may, its tokens, secrets and database among it",
            )
        if self.mode == "container":
            return ("the container's network reaches what the engine's network and firewall allow",)
        if self.mode == "host":
            return (
                "attempts over several hosts share the network of their hosts",
                "what each host leaves open, see `finery doctor` there",
            )
        if self.mode == "bubblewrap" or "namespaces" in self.features:
            return ()
        network = (
            "every address may be connected to"
            if self.landlock_abi < 4
            else "every address may be connected to, on the ports that the kernel hands out"
        )
        signals = () if self.landlock_abi >= 6 else ("processes of the server's user may be sent signals",)
        return (
            network,
            "sockets that lie in folders may be connected to",
            "shared memory of the server's user (/dev/shm) may be read and written",
            "the modes of files may be changed",
            *signals,
        )

    def sentence(self) -> str:
        """For the start message and `finery doctor`."""
        text = self.mode
        if self.mode == "landlock":
            text += f" (ABI {self.landlock_abi}{', with namespaces' if 'namespaces' in self.features else ''})"
        return f"{text}; left open: {'; '.join(self.left_open)}" if self.left_open else text

    def document(self) -> dict[str, Any]:
        """As plain data, for the report of a host."""
        return {"mode": self.mode, "left_open": list(self.left_open)}


NONE = Isolation("none")


def isolation_of(wanted: str) -> Isolation:
    """The isolation that the machine gives. Raises CommandError for a named mode that does not work here."""
    if wanted == "none":
        return NONE
    problems = []
    for mode in MODES if wanted == "auto" else (wanted,):
        outcome = tried(mode)
        if isinstance(outcome, Isolation):
            return outcome
        problems.append(f"{mode}: {outcome}")
    if wanted != "auto":
        raise CommandError(f"--isolation {wanted} does not work on this machine: {problems[0].partition(': ')[2]}")
    return Isolation("none", why="; ".join(problems))


@lru_cache(maxsize=8)
def tried(mode: str) -> Isolation | str:
    """A mode that worked when it was tried just now, or why it did not."""
    if sys.platform != "linux":
        return "only Linux has it"
    if mode == "bubblewrap" and shutil.which("bwrap") is None:
        return "the program `bwrap` is not installed"
    problem = ""
    for features in _WAYS[mode]:
        problem = _try(mode, features)
        if not problem:
            return Isolation(mode, features, landlock.abi())
    return problem


def _try(mode: str, features: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="finery-probe-") as folder:
        view = sandbox.plan(mode, features, (), (), (), {})
        for name in ("tmp", "root"):
            view[name] = os.path.join(folder, name)
            os.mkdir(view[name])
        try:
            done = subprocess.run(
                (sys.executable, "-I", "-S", "-c", _PROBE, sandbox.ROOT),
                input=json.dumps(view),
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            return str(json.loads(done.stdout))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return str(error)


def plan_of(isolation: Isolation, places: Sandbox, environment: Mapping[str, str], memory: int) -> dict[str, Any]:
    """The launcher's part of a plan for one attempt on this machine. Raises OSError when a place to write cannot
    be made."""
    # filled later, by the executor
    for path in (
        *places.write,
        *(path for path in places.read if path.endswith("/secrets")),
    ):
        os.makedirs(path, mode=0o700, exist_ok=True)
    view = sandbox.plan(isolation.mode, isolation.features, places.read, places.write, places.hidden, environment)
    view["shared_memory"] = memory
    view["refused_ports"] = list(places.refused_ports)
    view["egress"] = {
        "private": places.private_endpoints,
        "refused_ports": list(places.refused_ports),
        "upstream": _upstream(os.environ),
    }
    return view


def _upstream(outer: Mapping[str, str]) -> str:
    """The operator's own proxy for https, which the egress proxy asks in its turn."""
    for name in ("https_proxy", "HTTPS_PROXY"):
        if urlsplit(outer.get(name, "")).scheme == "http":
            return outer[name]
    return ""
