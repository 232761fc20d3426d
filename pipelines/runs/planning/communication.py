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
HIDDEN: dict[Profile, float] = {"single": 0.0, "ddp": 2 / 3, "fsdp2": 1.0, "zero2": 2 / 3, "zero3": 1.0}
"""Share of the computation behind which communication may hide: gradients are reduced during the backward pass alone,
weights are gathered ahead during both."""
BUCKET = 25 * 2**20
"""Bytes that DistributedDataParallel reduces at once."""


def communication(
    profile: Profile,
    processes: int,
    weights: int,
    layered: int,
    learnt: int,
    layers: int,
    accumulated: int,
    *,
    reads: int = 0,
    sampled: int = 0,
    updates: int = 1,
) -> Communication | None:
    """What each process sends in one step of the trainer; None where there is one.

    `weights`, `layered` (those in layers) and `learnt` are bytes. `accumulated` batches are learnt from, `reads` are
    read without gradients, `sampled` tokens behind the first of a text are written, and `updates` steps of the
    optimizer taken.

    `ddp` reduces gradients once an update, in buckets. `fsdp2` gathers each of `layers` for the forward and again for
    the backward pass, the rest once, and scatters the gradients, for every batch; without gradients it gathers all of
    them once; for a token that is sampled, the layers, since a layer is given up behind it and the rest is not.
    `zero2` scatters the gradients of every batch and gathers what an update changed; `zero3` gathers all weights for
    both passes and scatters the gradients of every batch (Rajbhandari et al. 2020, section 7,
    arxiv.org/abs/1910.02054). Collectives of DeepSpeed are taken for one a layer.
    """
    if processes == 1:
        return None
    share = (processes - 1) / processes
    if profile == "fsdp2":
        gathered = accumulated * (2 * layered + (weights - layered)) + reads * weights
        exposed = sampled * layered
        sent = share * (gathered + exposed + accumulated * learnt)
        operations = accumulated * (3 * layers + 2) + reads * (layers + 1) + sampled * layers
        return Communication(round(sent), operations, False, round(share * exposed))
    if profile == "zero2":
        sent, behind = share * (accumulated + updates) * learnt, share * updates * learnt
        return Communication(round(sent), accumulated * (layers + 1) + updates, False, round(behind))
    if profile == "zero3":
        sent = share * accumulated * (2 * weights + learnt)
        return Communication(round(sent), accumulated * 3 * (layers + 1), False)
    return Communication(round(2 * share * updates * learnt), updates * max(1, math.ceil(learnt / BUCKET)), True)


def added_seconds(
    sent: Communication, profile: Profile, processes: int, computing: float, bytes_per_second: float, hop: float
) -> float:
    """Seconds that communication adds to a step that computes for `computing` seconds."""
    steps = min(processes - 1, 2 * math.ceil(math.log2(processes))) if sent.reduces else processes - 1
    beside = (sent.bytes - sent.exposed) / bytes_per_second - HIDDEN[profile] * computing
    return max(0.0, beside) + sent.exposed / bytes_per_second + sent.operations * steps * hop
