"""What processes say to each other: one alone answers itself; two wait for each other and collect in the order of ranks."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from pipelines.core.interfaces import World
from pipelines.runs.distributed import barrier, gather


def test_one_process_waits_for_nobody() -> None:
    barrier(World())()
    assert gather(World())({"a": 1}) == [{"a": 1}]


PROGRAM = """
import os, sys, time
import torch.distributed as distributed
from pipelines.core.interfaces import World
from pipelines.runs.distributed import barrier, gather
rank, port = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
world = World(rank, 2)
time.sleep(0.5 * (1 - rank))
before = time.time()
barrier(world)()
times = gather(world)((before, time.time()))
assert max(entered for entered, _ in times) <= min(left for _, left in times), times
print(gather(world)({"rank": rank}))
distributed.destroy_process_group()
"""


@pytest.mark.long
def test_two_processes_collect_in_the_order_of_ranks() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    for child in children:
        said, wrong = child.communicate(timeout=120)
        assert child.returncode == 0, wrong
        assert said.strip() == "[{'rank': 0}, {'rank': 1}]"
