"""`finery doctor`: what this machine has, what it lacks, and what to do about it. Imports no torch.

Exit code 0, or 1 when something is missing without which nothing runs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Literal

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError
from pipelines.core.launch import faster_in_bf16
from service.cli.child import ask
from service.cli.publish import size

Verdict = Literal["good", "note", "lacks"]
OLDEST_PYTHON = (3, 11)
LITTLE_DISK, LITTLE_MEMORY = 5e9, 4e9
"""Bytes below which a note is made: torch alone takes 1 GB of memory; checkpoints and prepared data take disk."""
CORE_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "peft",
    "evaluate",
    "huggingface-hub",
    "safetensors",
    "pydantic",
    "ruamel.yaml",
    "typer",
    "rich",
    "pyarrow",
)
"""What is looked at where the package's own list of requirements is not at hand."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    verdict: Verdict = "good"
    remedy: str = ""
    """What to do; empty when there is nothing to do."""


def doctor(network: bool, as_json: bool, hosts: bool = False, processes: int | None = None) -> int:
    """Examine the machine and tell. `hosts` measures the network between ranks too. Returns the exit code."""
    findings = [
        python(),
        system(),
        cores(),
        memory(),
        isolation(),
        serving(),
        slurm(),
        *disks(),
        *gpus(),
        *gpu_energy(),
        cpu_precision(),
        *packages(),
        *data_folders(os.environ),
        token(os.environ),
    ]
    if network:
        findings.append(hub(os.environ))
    measured: dict[str, object] = {}
    if hosts:
        found, measured = between_ranks(processes, as_json)
        findings += found
    healthy = not any(finding.verdict == "lacks" for finding in findings)
    if as_json:
        told = {"healthy": healthy, "findings": [asdict(finding) for finding in findings], **measured}
        print(json.dumps(told, ensure_ascii=False))
    else:
        show(findings, healthy)
    return EXIT_DONE if healthy else EXIT_FAILED


def show(findings: list[Finding], healthy: bool) -> None:
    """One line a finding, the remedy below it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    unicode = console.encoding.lower().startswith("utf")
    signs = {"good": "✓" if unicode else "+", "note": "!", "lacks": "✗" if unicode else "x"}
    styles = {"good": "green", "note": "yellow", "lacks": "red"}
    findings = merged(findings)
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        line = Text(f"  {signs[finding.verdict]} ", style=styles[finding.verdict])
        console.print(line.append(f"{finding.what:<{width}}  ", style="dim").append(finding.found, style="default"))
        if finding.remedy:
            console.print(Text(f"    {'':<{width}}  {finding.remedy}", style=styles[finding.verdict]))
    console.print()
    notes = sum(finding.verdict == "note" for finding in findings)
    if not healthy:
        console.print(
            "Something essential is missing: see ✗ above."
            if unicode
            else "Something essential is missing: see x above."
        )
    else:
        console.print(f"Everything that is needed is here{f' ({notes} to note)' if notes else ''}.")


def merged(findings: list[Finding]) -> list[Finding]:
    """Packages that are as they should be in one line: only the others need one of their own."""
    wanted = requirements()
    fine = [finding for finding in findings if finding.what in wanted and finding.verdict == "good"]
    shown = [finding for finding in findings if finding not in fine]
    if fine:
        at = findings.index(fine[0])
        shown.insert(at, Finding("Packages", ", ".join(f"{finding.what} {finding.found}" for finding in fine)))
    return shown


def python() -> Finding:
    """The interpreter's version."""
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", version, "lacks", "Finery needs Python 3.11 or newer")
    return Finding("Python", f"{version} in {sys.prefix}")


def system() -> Finding:
    """Linux is supported, macOS mostly works."""
    name = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform == "linux":
        return Finding("System", name)
    if sys.platform == "darwin":
        return Finding("System", name, "note", "macOS is supported as well as we can; Linux is what is tested")
    return Finding("System", name, "lacks", "use Linux; on Windows, inside WSL 2")


def cores() -> Finding:
    """Cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("CPU", f"{usable} core{'s' if usable != 1 else ''}{_model_name()}")


def memory() -> Finding:
    """Memory that this process may use: the machine's, or its container's limit."""
    total = _machine_memory()
    if total is None:
        return Finding("Memory", "unknown", "note")
    limit = _container_limit()
    limited = limit is not None and limit < total
    most = limit if limit is not None and limited else total
    text = size(most) + (" (limit of the container)" if limited else "")
    if most < LITTLE_MEMORY:
        return Finding("Memory", text, "note", "little for training: take the preset bert-tiny and small batches")
    return Finding("Memory", text)


def isolation() -> Finding:
    """What would keep the jobs of a service apart from it on this machine; tried, not assumed."""
    from service.executors.isolation import isolation_of

    available = isolation_of("auto")
    if not available.kept:
        remedy = (
            "install bubblewrap (apt install bubblewrap) or allow user namespaces; until then `finery serve` takes "
            "jobs of admins only"
        )
        return Finding("Isolation", f"none ({available.why})", "note", remedy)
    if available.left_open:
        return Finding(
            "Isolation",
            available.sentence(),
            "note",
            "install bubblewrap (apt install bubblewrap) or allow user namespaces: then nothing of this stays open",
        )
    return Finding("Isolation", f"{available.sentence()}: jobs of a service are kept apart from it")


def serving() -> Finding:
    """What writes the texts of models that a service serves."""
    from importlib.util import find_spec

    found = find_spec("transformers")
    places = [] if found is None else list(found.submodule_search_locations or ())
    if not any((Path(place) / "generation" / "continuous_batching").is_dir() for place in places):
        return Finding(
            "Serving", "batched generate", "note", "transformers 5 writes texts that join one another (constraints.txt)"
        )
    engines = "continuous batching of transformers; batched generate for models that it does not fit, and for adapters "
    engines += "on one base"
    if find_spec("vllm") is not None:
        engines = f"vLLM for whole decoders of architectures that it knows; else {engines}"
    if find_spec("llguidance") is None:
        engines += "; no answers held to JSON or a schema: pip install 'finery[structured]'"
    return Finding("Serving", engines)


def slurm() -> Finding:
    """Whether Slurm's commands are here, and whether its controller answers."""
    if shutil.which("sbatch") is None:
        return Finding("Slurm", "not installed: only `finery serve --executor slurm` needs it")
    version = _ask("sbatch", "--version")
    if not version:
        remedy = "name its slurm.conf with SLURM_CONF; only `finery serve --executor slurm` needs it"
        return Finding("Slurm", "installed, but it finds no configuration", "note", remedy)
    partitions = _ask("sinfo", "--noheader", "--format=%P (%D nodes)").splitlines()
    if not partitions:
        remedy = "`scontrol ping` says more; `finery serve --executor slurm` needs a slurmctld that answers"
        return Finding("Slurm", f"{version}, but its controller does not answer", "note", remedy)
    return Finding("Slurm", f"{version}, partitions {', '.join(dict.fromkeys(partitions))}")


def between_ranks(processes: int | None, quiet: bool) -> tuple[list[Finding], dict[str, object]]:
    """What the hosts share and how fast their ranks speak, measured by a child process; and the measurement."""
    answer = ask("network", {"processes": processes}, "Measuring the network between ranks", quiet)
    if answer.code == EXIT_USAGE:
        raise CommandError(answer.error)
    if answer.code != EXIT_DONE:
        return [Finding("Hosts", answer.error, "lacks")], {}
    findings = [Finding(**each) for each in answer.data.pop("findings")]
    return findings, answer.data


def disks() -> list[Finding]:
    """Free space where stages are kept, and where runs are written."""
    home = finery_home(os.environ)
    return [
        _disk("Disk for stages", home, f"{home} (FINERY_HOME)"),
        _disk("Disk for runs", Path.cwd(), "the working folder"),
    ]


def finery_home(environment: Mapping[str, str]) -> Path:
    """Where complete stages are kept; as `pipelines.core.files.home` finds it."""
    if given := environment.get("FINERY_HOME"):
        return Path(given).expanduser().absolute()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "finery"


KEPT_APART_BY_MASKS = (
    "its compute capability is below 8.0: packed documents are kept apart by masks, not by attention over sequences"
)


NO_COMPILER = (
    "losses over a vocabulary take torch's softmax instead of Triton's kernels, and torch_compile fails: install gcc "
    "and Python's headers (python3-dev)"
)


def older(capability: str) -> bool:
    """Whether a compute capability such as `7.5` is below 8.0, where sequences have no kernel; False if unknown."""
    major = capability.strip().partition(".")[0]
    return major.isdigit() and int(major) < 8


def compiler(environment: Mapping[str, str]) -> str | None:
    """The C compiler that Triton builds kernels with; None where there is none."""
    return environment.get("CC") or shutil.which("gcc") or shutil.which("clang")


def gpus() -> list[Finding]:
    """GPUs that the drivers know of, without loading torch."""
    if shutil.which("nvidia-smi"):
        listing = _ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
        if listing:
            lines = listing.splitlines()
            capabilities = _ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").splitlines()
            capabilities += [""] * (len(lines) - len(capabilities))  # an old nvidia-smi does not know them
            found = [
                Finding("GPU", line, "note", KEPT_APART_BY_MASKS) if older(capability) else Finding("GPU", line)
                for line, capability in zip(lines, capabilities, strict=True)
            ]
            if compiler(os.environ) is None:
                found.append(Finding("GPU kernels", "no C compiler (CC, gcc or clang)", "note", NO_COMPILER))
            return found
        return [
            Finding(
                "GPU", "nvidia-smi does not answer", "note", "the driver seems broken; training falls back to the CPU"
            )
        ]
    if Path("/proc/driver/nvidia/version").exists():
        return [
            Finding(
                "GPU",
                "an NVIDIA driver is loaded",
                "note",
                "nvidia-smi is not installed here, so the cards cannot be listed",
            )
        ]
    if Path("/dev/kfd").exists():
        return [Finding("GPU", "an AMD GPU (ROCm)", "note", "install torch's ROCm build to use it; not tested by us")]
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return [Finding("GPU", "Apple GPU (MPS)")]
    return [Finding("GPU", "none: training runs on the CPU")]


def gpu_energy() -> list[Finding]:
    """Whether the energy of NVIDIA's GPUs can be counted, where there are any."""
    from importlib.util import find_spec

    if shutil.which("nvidia-smi") is None or find_spec("pynvml") is not None:
        return []
    remedy = "a run's energy is estimated from hours and board power; to have it measured: pip install nvidia-ml-py"
    return [Finding("GPU energy", "not counted", "note", remedy)]


def cpu_precision() -> Finding:
    """Whether the CPU computes bf16 natively, and is the faster for it."""
    flags = _cpu_flags()
    native = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in flags]
    if native and not faster_in_bf16():
        said = f"native ({', '.join(native)}), but slower than fp32 without AMX: mixed_precision auto stays in fp32"
        return Finding("CPU bf16", said)
    if native:
        return Finding("CPU bf16", f"native ({', '.join(native)}): mixed_precision auto can use bf16")
    return Finding("CPU bf16", "not native: mixed_precision auto stays in fp32 on the CPU")


def packages() -> list[Finding]:
    """Installed versions of what Finery asks for, and whether they fit."""
    findings = []
    wanted = requirements()
    for name, allowed in wanted.items():
        try:
            version = distribution(name).version
        except PackageNotFoundError:
            findings.append(Finding(name, "not installed", "lacks", f"pip install '{name}{allowed}'"))
            continue
        if allowed and not fits(version, allowed):
            findings.append(
                Finding(name, version, "note", f"Finery asks for {name}{allowed}: pip install '{name}{allowed}'")
            )
        else:
            findings.append(Finding(name, version))
    return findings


def requirements() -> dict[str, str]:
    """Package -> allowed versions, as the installed Finery asks for; without extras."""
    try:
        lines = requires("finery") or []
    except PackageNotFoundError:
        return dict.fromkeys(CORE_PACKAGES, "")
    parsed = {}
    for line in lines:
        requirement, _, condition = line.partition(";")
        match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", requirement)
        if match and "extra" not in condition:
            parsed[match.group(1)] = match.group(2).replace(" ", "")
    return parsed or dict.fromkeys(CORE_PACKAGES, "")


def fits(version: str, allowed: str) -> bool:
    """Whether a version lies in a range such as `>=2.13,<3`; what is not understood is taken to fit."""
    have = _release(version)
    for clause in allowed.split(","):
        match = re.fullmatch(r"\s*(==|>=|<=|>|<|!=|~=)\s*([0-9][0-9.]*)(\.\*)?\s*", clause)
        if match is None:
            continue
        operator, limit = match.group(1), _release(match.group(2))
        length = max(len(have), len(limit))
        mine, theirs = (each + (0,) * (length - len(each)) for each in (have, limit))
        same = mine[: len(limit)] == limit if match.group(3) else mine == theirs
        held = {
            "==": same,
            "!=": not same,
            ">=": mine >= theirs,
            "<=": mine <= theirs,
            ">": mine > theirs,
            "<": mine < theirs,
            "~=": mine >= theirs and mine[: len(limit) - 1] == limit[:-1],
        }[operator]
        if not held:
            return False
    return True


def data_folders(environment: Mapping[str, str]) -> list[Finding]:
    """The folders of FINERY_DATA, and what lies in them."""
    given = [part for part in environment.get("FINERY_DATA", "").split(os.pathsep) if part]
    if not given:
        return [Finding("FINERY_DATA", "not set: data sets come from files and the Hub")]
    findings = []
    for part in given:
        root = Path(part).expanduser()
        if not root.is_dir():
            findings.append(Finding("FINERY_DATA", str(root), "note", "there is no such folder; correct the variable"))
            continue
        sets = sorted(each.name for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
        shown = ", ".join(sets[:8]) + (f" and {len(sets) - 8} more" if len(sets) > 8 else "")
        findings.append(Finding("FINERY_DATA", f"{root}: {shown or 'empty'}", "good" if sets else "note"))
    return findings


def token(environment: Mapping[str, str]) -> Finding:
    """Whether a Hub token is set; its value is never shown."""
    if environment.get("HF_TOKEN"):
        return Finding("HF_TOKEN", "set")
    return Finding("HF_TOKEN", "not set: only needed for gated models and to publish to the Hub")


def hub(environment: Mapping[str, str]) -> Finding:
    """Whether the Hub answers."""
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    endpoint = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    if not endpoint.startswith(("http://", "https://")):
        return Finding("Hub", endpoint, "note", "HF_ENDPOINT must begin with https://")
    if environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("Hub", "not asked: HF_HUB_OFFLINE is set")
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=5):  # the scheme is checked above
            return Finding("Hub", f"{endpoint} answers")
    except (URLError, OSError, ValueError) as error:
        return Finding(
            "Hub",
            f"{endpoint} does not answer ({getattr(error, 'reason', error)})",
            "note",
            "recipes with local files and folders work without it",
        )


def _disk(what: str, place: Path, named: str) -> Finding:
    existing = next(each for each in (place, *place.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return Finding(
            what,
            f"{named} may not be written",
            "lacks",
            "set FINERY_HOME to a folder of yours" if "HOME" in named else "change to a folder of yours",
        )
    if free < LITTLE_DISK:
        return Finding(
            what, f"{size(free)} free in {named}", "note", "little for checkpoints: `finery gc` frees what no run uses"
        )
    return Finding(what, f"{size(free)} free in {named}")


def _machine_memory() -> float | None:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None


def _container_limit() -> float | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return float(Path(path).read_text())
        except (OSError, ValueError):
            continue
    return None


def _cpu_info() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


def _cpu_flags() -> set[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpu_info(), re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def _model_name() -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", _cpu_info(), re.MULTILINE)
    return f", {match.group(1)}" if match else ""


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group(0).split(".")) if match else ()
