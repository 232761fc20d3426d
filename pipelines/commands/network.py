"""`finery doctor --hosts`: whether ranks find each other, what NCCL was told, what the hosts share, how fast it all is.

One command on every host, with the variables of `pipelines.runs.distributed`; on one machine alone without any. The
hosts meet in the folder that they share: each writes `ready-<n>.json` there, again and again, until the first host has
seen all of them and writes `call.json`. Then torchrun starts the ranks, which time all-reduces of several sizes. The
first host writes what was measured into FINERY_HOME, where plans read it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, StageError
from pipelines.core.files import JSONObject, read_json, write_json
from pipelines.core.network import AllReduce, NetworkMeasurement, bus_bandwidth, keep_measurement, network_file
from pipelines.core.signals import die_with_parent
from pipelines.runs.distributed import Hosts, hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "doctor"
"""In the folder that the hosts share."""
SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)
"""Bytes of a message: small ones tell the latency, the largest the bandwidth."""
WARM_UP, TIMES = 3, 11
MEET_SECONDS = 120.0
"""How long hosts wait for each other, and ranks for theirs."""
PAUSE = 0.2
SAME = ("python", "torch", "finery")
"""Versions that must be the same on all hosts."""
CLOCK_SECONDS = 5.0
"""Clocks that differ by more are noted: leases and the order of logs depend on them."""


def answer(request: JSONObject) -> dict[str, Any]:
    """Check and measure. `processes` are the ranks in all: by default one a GPU, or two on each host without GPUs.

    Returns `findings` (what, found, verdict, remedy) and, on the first host, `measurement`. Raises CommandError for a
    world that cannot be, StageError when the hosts or ranks do not meet.
    """
    here = hosts()
    gpus = _gpus()
    processes = request.get("processes") or here.count * (gpus or 2)
    if processes % here.count or processes < 2:
        raise CommandError(
            f"--processes {processes} cannot be measured on {here.count} host{'s' if here.count > 1 else ''}: name at "
            f"least two, and a multiple of the hosts"
        )
    each = processes // here.count
    if gpus and each > gpus:
        raise CommandError(f"--processes {processes} are {each} on each host, but this one has {gpus} GPUs")
    with _meeting_folder(here) as folder:
        everybody = _meet(here, folder, _about(here, gpus), processes)
        findings = [*checks(everybody, os.environ), _reached(here)]
        if here.number == 0:
            _run_ranks(here, folder, processes)
            measured = _measurement(here, read_json(folder / "result.json"))
            keep_measurement(measured)
            return {"findings": [*findings, *told(measured)], "measurement": asdict(measured)}
        _run_ranks(here, folder, processes)
        return {"findings": [*findings, _finding("Bandwidth", "measured; the first host shows and keeps it")]}


def checks(everybody: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> list[dict[str, str]]:
    """What the hosts said of themselves, held against each other."""
    findings = []
    names = ", ".join(str(each["host"]) for each in everybody)
    if len(everybody) > 1:
        skew = max(abs(float(each["behind"])) for each in everybody)
        findings.append(_finding("Shared folder", f"all {len(everybody)} hosts write and read it: {names}"))
        if skew > CLOCK_SECONDS:
            remedy = "run NTP or chrony on all hosts: leases and the order of logs depend on clocks"
            findings.append(_finding("Clocks", f"{skew:.0f} s apart", "note", remedy))
    for name in SAME:
        found = {str(each[name]) for each in everybody}
        if len(found) > 1:
            told_by = ", ".join(f"{each['host']} has {each[name]}" for each in everybody)
            findings.append(_finding(name, told_by, "lacks", f"install the same {name} on all hosts"))
    findings += nccl(environment, {name for _, name in socket.if_nameindex()}, len(everybody))
    return findings


def nccl(environment: Mapping[str, str], interfaces: set[str], count: int) -> list[dict[str, str]]:
    """What NCCL and gloo were told by variables, and what of it cannot be right on this host."""
    given = {name: value for name, value in sorted(environment.items()) if re.match(r"(NCCL|GLOO)_", name)}
    findings = []
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = [part.lstrip("=") for part in given.get(name, "").split(",") if part and not part.startswith("^")]
        absent = [part for part in wanted if not any(each.startswith(part) for each in interfaces)]
        if absent:
            remedy = f"name one of {', '.join(sorted(interfaces))}, or unset it"
            findings.append(_finding(name, f"{given[name]}, which this host does not have", "lacks", remedy))
        elif count > 1 and set(wanted) == {"lo"}:
            findings.append(_finding(name, "lo, which reaches no other host", "lacks", "name the network's interface"))
    if count > 1 and given.get("NCCL_P2P_DISABLE") == "1":
        findings.append(_finding("NCCL_P2P_DISABLE", "1", "note", "GPUs of one host then speak through main memory"))
    if given.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        findings.append(
            _finding("NCCL_DEBUG", given["NCCL_DEBUG"], "note", "every step is logged: unset it for training")
        )
    if given and not findings:
        findings.append(_finding("NCCL", " ".join(f"{name}={value}" for name, value in given.items())))
    return findings or [_finding("NCCL", "no NCCL_… or GLOO_… variable is set: interfaces are chosen by the libraries")]


def told(measured: NetworkMeasurement) -> list[dict[str, str]]:
    """A measurement as findings."""
    world = f"{measured.processes} ranks on {measured.hosts} host{'s' if measured.hosts > 1 else ''}"
    rows = [
        _finding(
            f"All-reduce {_size(each.bytes)}",
            f"{each.seconds * 1e3:.3g} ms, {bus_bandwidth(each, measured.processes) / 1e9:.3g} GB/s",
        )
        for each in measured.all_reduce
    ]
    kept = f"{measured.bytes_per_second / 1e9:.3g} GB/s and {measured.latency_seconds * 1e6:.3g} µs a step"
    where = f"{world}, {measured.backend} on {measured.device}: {kept}; kept in {network_file()}"
    return [*rows, _finding("Bandwidth", where)]


def _finding(what: str, found: str, verdict: str = "good", remedy: str = "") -> dict[str, str]:
    return {"what": what, "found": found, "verdict": verdict, "remedy": remedy}


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count()) if torch.distributed.is_nccl_available() else 0


def _about(here: Hosts, gpus: int) -> dict[str, Any]:
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "torch": version("torch"), "finery": _finery()}
    return {"host": socket.gethostname(), "number": here.number, "gpus": gpus, **versions, "nonce": os.urandom(8).hex()}


def _finery() -> str:
    try:
        return version("finery")
    except ModuleNotFoundError:  # started from a checkout
        return "checkout"


def _reached(here: Hosts) -> dict[str, str]:
    """Whether the address of the first host has one that the others can reach."""
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo(here.address, None)})
    except OSError as error:
        remedy = "set FINERY_ADDRESS to a name or an address of the first host that all hosts know"
        return _finding("Rendezvous", f"{here.address} cannot be resolved: {error.strerror}", "lacks", remedy)
    if here.count > 1 and all(each.startswith("127.") or each == "::1" for each in found):
        remedy = "right for several hosts on one machine; else set FINERY_ADDRESS to one that the others reach"
        return _finding("Rendezvous", f"at {here.address}, an address of this machine alone", "note", remedy)
    return _finding("Rendezvous", f"at {here.address} ({', '.join(found)})")


@contextmanager
def _meeting_folder(here: Hosts) -> Iterator[Path]:
    """Where the hosts meet. The first one clears it before and after."""
    if here.folder is None:
        with tempfile.TemporaryDirectory(prefix="finery-doctor-") as own:
            yield Path(own)
        return
    folder = here.folder / FOLDER
    if here.number == 0:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        if here.number == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _meet(here: Hosts, folder: Path, about: dict[str, Any], processes: int) -> list[dict[str, Any]]:
    """What every host says of itself, in their order, once all are there. Raises StageError when one does not come."""
    end = time.monotonic() + MEET_SECONDS
    everybody: list[dict[str, Any]] = []
    while time.monotonic() < end:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # again and again: the first host removes what an earlier meeting left
            write_json(folder / f"ready-{here.number}.json", {**about, "time": time.time()})
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StageError(f"{folder} cannot be written on this host: {error.strerror}") from None
        if here.number == 0:
            everybody = [read_json(folder / f"ready-{number}.json") for number in range(here.count)]
            if all(everybody):
                everybody = [{**each, "behind": time.time() - float(each["time"])} for each in everybody]
                port = _free_port()
                write_json(folder / "call.json", {"everybody": everybody, "port": port, "processes": processes})
                return everybody
        else:
            call = read_json(folder / "call.json")
            everybody = call.get("everybody", [])
            if about["nonce"] in [each["nonce"] for each in everybody]:
                if call["processes"] != processes:
                    raise CommandError(
                        f"the first host asks for {call['processes']} processes and this one for {processes}; say the "
                        "same --processes on every host"
                    )
                return everybody
        time.sleep(PAUSE)
    there = [(folder / f"ready-{number}.json").is_file() for number in range(here.count)]
    missing = [str(number) for number, came in enumerate(there) if not came] or ["0"]  # the first host calls the others
    raise StageError(
        f"host {', '.join(missing)} did not come within {MEET_SECONDS:.0f} s: run `finery doctor --hosts` on every "
        f"host at the same time, with FINERY_WORLD={here.folder} on a file system that they share"
    )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _run_ranks(here: Hosts, folder: Path, processes: int) -> None:
    """This host's ranks, to their end. Raises StageError with what the first failing one said."""
    where = ["--standalone"]
    if here.count > 1:
        port = read_json(folder / "call.json")["port"]
        where = [f"--nnodes={here.count}", f"--node_rank={here.number}"]
        where += [f"--master_addr={here.address}", f"--master_port={port}"]
    command = [sys.executable, "-m", "torch.distributed.run", *where, f"--nproc_per_node={processes // here.count}"]
    command += ["--max_restarts=0", "-m", __name__, str(folder)]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command,
            env=os.environ | {"FINERY_PARENT_PID": "", "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            preexec_fn=lambda: die_with_parent(),
        )
        try:
            code = child.wait(MEET_SECONDS * 5)
        except subprocess.TimeoutExpired:
            code = -9
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        log.seek(0)
        said = log.read().decode(errors="replace")
    if code != 0:
        errors = re.findall(r"^(?:\[rank\d+\]: )?(?:\w+\.)*(\w*Error: .*)$", said, re.MULTILINE)
        why = errors[0][:400] if errors else f"exit code {code}"
        raise StageError(
            f"the ranks did not measure ({why}); look whether a firewall closes ports between the hosts, and whether "
            f"{here.address} is the first host's address for all of them"
        )


def _measurement(here: Hosts, result: Mapping[str, Any]) -> NetworkMeasurement:
    if not result:
        raise StageError("the ranks left no result; is the folder of FINERY_WORLD one that all hosts share?")
    return NetworkMeasurement(
        here.count,
        int(result["processes"]),
        result["backend"],
        str(result["device"]),
        datetime.now(UTC).isoformat(timespec="seconds"),
        tuple(AllReduce(int(size), float(seconds)) for size, seconds in result["all_reduce"]),
    )


def rank(folder: Path) -> None:
    """In each rank: time all-reduces of every size; the first rank writes the medians."""
    import torch
    import torch.distributed as dist

    gpu = _gpus() > 0
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=MEET_SECONDS))
    rows = []
    for size in SIZES:
        message = torch.zeros(size // 4, dtype=torch.float32, device=device)
        times = torch.zeros(WARM_UP + TIMES, dtype=torch.float64, device=device)
        for number in range(WARM_UP + TIMES):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(message)
            if gpu:
                torch.cuda.synchronize(device)
            times[number] = time.perf_counter() - began
        dist.all_reduce(times, op=dist.ReduceOp.MAX)  # an operation is over when its slowest rank has ended it
        rows.append((size, median(times[WARM_UP:].tolist())))
    if dist.get_rank() == 0:
        name = torch.cuda.get_device_name(device) if gpu else "cpu"
        result = {"processes": dist.get_world_size(), "backend": backend, "device": name, "all_reduce": rows}
        write_json(folder / "result.json", result)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
