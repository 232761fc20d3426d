"""What the processes of a step send to each other, and how much longer the step takes for it.

Collectives are taken for rings (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH",
section 4): each process sends and receives (n - 1) / n of what is gathered or scattered, and twice that of what is
reduced everywhere, at the rate of the slowest link on the way; what computation can hide of that is not counted. Each
of n - 1 hops adds its latency, which nothing hides. All-reduces over many processes are trees (Sanders et al. 2009,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan"). docs/scaling.md holds the outcome against
published runs.
"""

from __future__ import annotations

import math

from pipelines.core.costs import Communication
from pipelines.core.interfaces import Profile

HOP_SECONDS = 2.5e-6
"""Latency of a hop of a ring. Fitted; see docs/scaling.md."""
HIDDEN: dict[Profile, float] = {"single": 0.0, "ddp": 2 / 3, "fsdp2": 1.0}
"""Share of the computation behind which communication may hide: gradients are reduced during the backward pass alone,
weights are gathered ahead during both."""
BUCKET = 25 * 2**20
"""Bytes that DistributedDataParallel reduces at once."""


def communication(
    profile: Profile, processes: int, weights: int, layered: int, learnt: int, layers: int, accumulated: int
) -> Communication | None:
    """What each process sends in one optimizer step; None where there is one.

    `weights`, `layered` (those in layers) and `learnt` are bytes. `ddp` reduces gradients once a step, in buckets.
    `fsdp2` gathers each of `layers` for the forward and again for the backward pass, the rest once, and scatters the
    gradients, for every one of `accumulated` batches.
    """
    if processes == 1:
        return None
    share = (processes - 1) / processes
    if profile == "fsdp2":
        gathered = 2 * layered + (weights - layered)
        return Communication(round(accumulated * share * (gathered + learnt)), accumulated * (3 * layers + 2), False)
    return Communication(round(2 * share * learnt), max(1, math.ceil(learnt / BUCKET)), True)


def added_seconds(
    sent: Communication, profile: Profile, processes: int, computing: float, bytes_per_second: float, hop: float
) -> float:
    """Seconds that communication adds to a step that computes for `computing` seconds."""
    steps = min(processes - 1, 2 * math.ceil(math.log2(processes))) if sent.reduces else processes - 1
    return max(0.0, sent.bytes / bytes_per_second - HIDDEN[profile] * computing) + sent.operations * steps * hop
