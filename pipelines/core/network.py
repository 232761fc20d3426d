"""What the network between ranks was measured to do: written by `finery doctor --hosts`, read by plans. No torch.

`FINERY_HOME/network.json` keeps the newest measurement of each combination of hosts, ranks on each, and backend. Times
follow the model of a ring all-reduce (Thakur et al. 2005, "Optimization of Collective Communication Operations in
MPICH", section 4): n ranks need 2 (n - 1) steps, and each sends and receives 2 (n - 1) / n times the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipelines.core.files import home, read_json, write_json

NETWORK = "network.json"
"""In FINERY_HOME: what was measured."""


@dataclass(frozen=True)
class AllReduce:
    """One size of message."""

    bytes: int
    seconds: float
    """Median, of the slowest rank, for the whole operation."""


@dataclass(frozen=True)
class NetworkMeasurement:
    """All-reduces of one world."""

    hosts: int
    processes: int
    """In all."""
    backend: Literal["gloo", "nccl"]
    device: str
    """As the driver names a GPU, or `cpu`."""
    time: str
    """RFC 3339."""
    all_reduce: tuple[AllReduce, ...]
    """By size, the smallest first."""

    @property
    def latency_seconds(self) -> float:
        """Of one step of a ring: of the smallest message, which is all latency."""
        return self.all_reduce[0].seconds / (2 * (self.processes - 1))

    @property
    def bytes_per_second(self) -> float:
        """What each rank sends and receives while the largest message is reduced; nccl-tests' bus bandwidth."""
        return bus_bandwidth(self.all_reduce[-1], self.processes)


def bus_bandwidth(measured: AllReduce, processes: int) -> float:
    """Bytes a second over each rank's link, as nccl-tests' PERFORMANCE.md defines it for all-reduce."""
    return measured.bytes / measured.seconds * 2 * (processes - 1) / processes


def network_file() -> Path:
    """Where measurements lie."""
    return home() / NETWORK


def read_network(path: Path | None = None) -> tuple[NetworkMeasurement, ...]:
    """All measurements, the newest first; none where nothing was measured or the file is another version's."""
    rows = read_json(path or network_file()).get("measurements", [])
    try:
        measurements = [
            NetworkMeasurement(**{**row, "all_reduce": tuple(AllReduce(**each) for each in row["all_reduce"])})
            for row in rows
        ]
    except (TypeError, KeyError):
        return ()
    return tuple(sorted(measurements, key=lambda each: each.time, reverse=True))


def keep_measurement(measured: NetworkMeasurement, path: Path | None = None) -> None:
    """Write a measurement in the place of an older one of the same world."""
    path = path or network_file()
    others = [each for each in read_network(path) if _world(each) != _world(measured)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"measurements": [asdict(each) for each in (measured, *others)]})


def measurement_for(
    hosts: int, processes: int, backend: str, measurements: Sequence[NetworkMeasurement] | None = None
) -> NetworkMeasurement | None:
    """The measurement nearest to a world: of this backend, within one host or between hosts as it is; None without."""
    alike = [
        each
        for each in (read_network() if measurements is None else measurements)
        if each.backend == backend and (each.hosts > 1) == (hosts > 1)
    ]
    return min(alike, key=lambda each: (abs(each.hosts - hosts), abs(each.processes - processes)), default=None)


def _world(measured: NetworkMeasurement) -> tuple[int, int, str]:
    return measured.hosts, measured.processes, measured.backend
