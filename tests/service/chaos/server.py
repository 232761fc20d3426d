"""`finery serve` as it is, but for what an attempt runs and what the host has: `server.py HOME PORT DATABASE_URL WORKLOAD`.

The host pretends to have four GPUs, so that slots are taken and freed; WORKLOAD is `stand-in` or `pipelines`.
"""

import logging
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY))

from service.cli import serve  # noqa: E402
from service.executors.isolation import isolation_of  # noqa: E402
from service.executors.local import LocalExecutor  # noqa: E402
from service.executors.protocol import Gpu, HostCapacity  # noqa: E402
from service.supervisor import Supervisor as RealSupervisor  # noqa: E402

STAND_IN = (sys.executable, "-S", str(REPOSITORY / "tests" / "service" / "stand_in_run.py"))
HOST = HostCapacity("chaos", 4, 16 << 30, tuple(Gpu(index, 80 << 30, "pretended") for index in range(4)))


class Supervisor(RealSupervisor):
    """The real one, around the pretended host."""

    def __init__(self, settings, store):
        commands = () if sys.argv[4] == "pipelines" else (STAND_IN,)
        super().__init__(settings, store, LocalExecutor(HOST, isolation=isolation_of(settings.isolation)), *commands)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    serve.Supervisor = Supervisor  # type: ignore[misc]
    isolation = "auto" if sys.argv[4] == "pipelines" else "none"  # the stand-in lies where no attempt may read
    sys.exit(
        serve.serve(
            "127.0.0.1", int(sys.argv[2]), Path(sys.argv[1]), sys.argv[3] or None, None, True, isolation=isolation
        )
    )
