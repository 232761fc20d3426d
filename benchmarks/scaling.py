"""The communication model of `finery plan --gpus`, held against published runs and against runs on this machine.

Published: throughput of the same batch a GPU on more and more GPUs. The smallest world of each series gives the time of
its computation; the model adds what more processes add. The error is that of the predicted throughput. The hop's
latency is fitted to one series (`FITTED`) and tested on the others.

Here (`--here`): one recipe on 1, 2 and 4 gloo processes, `ddp` and `fsdp2`, at the same global batch, beside the network
that `finery doctor --hosts` measures. Processes of one machine share its cores, which compute and copy, so nothing is
hidden and the time of computation is that of one process.

    python benchmarks/scaling.py [--here] [--processes 2 4] [--steps 5 25] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pipelines.core.costs import Communication
from pipelines.core.interfaces import Profile
from pipelines.core.network import read_network
from pipelines.runs.planning.communication import HOP_SECONDS, added_seconds, communication
from pipelines.runs.planning.scaling import cluster

MPT = "llm-foundry, scripts/train/benchmarking/README.md at 061f2c7"
TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf"


class Series(NamedTuple):
    """Throughput by the number of GPUs, everything else equal."""

    name: str
    source: str
    parameters: float
    layers: int
    tokens: int
    """Of each GPU in a step."""
    tokens_per_second: dict[int, float]
    """Of each GPU."""


H100 = (
    Series("MPT 1B", MPT, 1.316e9, 24, 20 * 2048, {16: 46037, 32: 45130, 64: 44402}),
    Series("MPT 7B", MPT, 6.659e9, 32, 6 * 2048, {8: 10643, 128: 10475, 256: 10119, 512: 9670}),
    Series("MPT 13B", MPT, 12.85e9, 40, 2 * 2048, {8: 4792, 16: 4767, 32: 4811, 64: 4800}),
    Series("MPT 13B, recomputed", MPT, 12.85e9, 40, 16 * 2048, {128: 5080, 256: 4989, 512: 4952}),
    Series("MPT 30B, recomputed", MPT, 29.98e9, 48, 8 * 2048, {128: 2199, 256: 2148, 512: 2115}),
    Series("MPT 70B, recomputed", MPT, 64.86e9, 80, 8 * 2048, {128: 1058, 256: 1035, 512: 1007}),
    Series("Llama 3.1 8B", TITAN, 8.03e9, 32, 2 * 8192, {8: 5762, 128: 5605}),
    Series("Llama 3.1 8B, compiled", TITAN, 8.03e9, 32, 2 * 8192, {8: 6667, 128: 6514}),
)
"""FSDP with full shards, bfloat16 weights gathered and float32 gradients scattered, 8 H100 a host."""
FITTED = "MPT 7B"


def sent(series: Series, gpus: int) -> Communication:
    """What each GPU sends in a step."""
    weights = round(2 * series.parameters)
    found = communication("fsdp2", gpus, weights, weights, round(4 * series.parameters), series.layers, 1)
    assert found is not None
    return found


def predicted(series: Series, hop: float) -> dict[int, float]:
    """Tokens a second of each GPU, from the throughput of the smallest world."""
    smallest, *larger = sorted(series.tokens_per_second)
    whole = series.tokens / series.tokens_per_second[smallest]

    def added(gpus: int, computing: float) -> float:
        rate = cluster(f"{gpus}xH100").bytes_per_second
        return added_seconds(sent(series, gpus), "fsdp2", gpus, computing, rate, hop)

    computing = whole - added(smallest, whole)
    return {gpus: series.tokens / (computing + added(gpus, computing)) for gpus in larger}


def fitted() -> float:
    """Seconds of a hop with the least squared error on one series."""
    series = next(each for each in H100 if each.name == FITTED)

    def error(hop: float) -> float:
        found = predicted(series, hop)
        return sum((found[gpus] / series.tokens_per_second[gpus] - 1) ** 2 for gpus in found)

    return min((number * 1e-7 for number in range(201)), key=error)


def published() -> None:
    """Print the table of published runs."""
    print(f"a hop takes {fitted() * 1e6:.1f} us by {FITTED}; the planner takes {HOP_SECONDS * 1e6:.1f} us\n")
    print("| model | GPUs | tokens a second and GPU, published | predicted | error |\n|---|---:|---:|---:|---:|")
    errors = []
    for series in H100:
        found = predicted(series, HOP_SECONDS)
        first = min(series.tokens_per_second)
        print(f"| {series.name} | {first} | {series.tokens_per_second[first]:,.0f} | | |")
        for gpus, value in found.items():
            error = value / series.tokens_per_second[gpus] - 1
            errors.append(error)
            print(f"| | {gpus} | {series.tokens_per_second[gpus]:,.0f} | {value:,.0f} | {error:+.1%} |")
    absolute = [abs(each) for each in errors]
    print(f"\nlargest error {max(absolute):.1%}, mean of their sizes {statistics.mean(absolute):.1%}")
    series = next(each for each in H100 if each.name == FITTED)
    rates = dict(series.tokens_per_second)
    for gpus in (1024, 2048, 4096):
        more = series._replace(tokens_per_second={8: rates[8], gpus: 1.0})
        print(f"{FITTED} on {gpus} GPUs: {predicted(more, HOP_SECONDS)[gpus] / rates[8]:.0%} of its rate on 8")


# -- on this machine ---------------------------------------------------------------------------------------------------

LAYERS, WIDTH, VOCABULARY, BATCH, LENGTH = 4, 256, 8192, 16, 128


def recipe(steps: int, profile: Profile, processes: int) -> str:
    """One encoder, pretrained for so many steps."""
    stage = {
        "stage": "pretrain",
        "datasets": [{"path": "builtin/python-docs"}],
        "block_size": LENGTH,
        "seed": time.time_ns() % 2**32,  # or a finished stage of another world would be taken
        "arguments": {"max_steps": steps, "global_batch_size": BATCH, "save_strategy": "no"},
    }
    model = {
        "architecture": {
            "family": "encoder",
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "intermediate_size": 4 * WIDTH,
        }
    }
    return json.dumps(
        {
            "name": f"{profile}-{processes}-{steps}-{time.time_ns()}",
            "model": model,
            "tokenizer": {"train": "wordpiece", "vocab_size": VOCABULARY},
            "launch": {"profile": profile, "num_processes": processes, "mixed_precision": "no"},
            "stages": [stage],
        }
    )


def seconds(folder: Path, steps: int, profile: Profile, processes: int, cores: int) -> float:
    """Of the whole training."""
    path = folder / "recipe.yaml"
    path.write_text(recipe(steps, profile, processes))
    environment = {
        **os.environ,
        "FINERY_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
    }
    subprocess.run(
        [sys.executable, "-m", "pipelines", "run", str(path)],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    name = json.loads(path.read_text())["name"]
    metrics = next((folder / "runs" / name / "stages").glob("*pretrain/metrics.json"))
    return float(json.loads(metrics.read_text())["train_runtime"])


def here(worlds: list[int], steps: tuple[int, int], rounds: int) -> None:
    """Print the table of runs on this machine."""
    cores = len(os.sched_getaffinity(0))
    few, many = steps
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["FINERY_HOME"] = str(folder / "home")
        sides: list[tuple[Profile, int]] = [("single", 1)]
        sides += [(profile, number) for number in worlds for profile in ("ddp", "fsdp2")]  # type: ignore[misc]
        taken: dict[tuple[Profile, int], list[float]] = {side: [] for side in sides}
        for number in worlds:
            words = [sys.executable, "-m", "service.cli", "doctor", "--hosts", "--processes", str(number)]
            subprocess.run(words, check=False, capture_output=True)
        networks = {each.processes: each for each in read_network()}
        for _ in range(rounds):
            for profile, number in sides:
                pair = [seconds(folder, each, profile, number, cores) for each in (few, many)]
                taken[profile, number].append((pair[1] - pair[0]) / (many - few))
        layered = LAYERS * (12 * WIDTH * WIDTH) * 4
        weights = layered + VOCABULARY * WIDTH * 4
        one = statistics.median(taken["single", 1])
        print(f"one process: {one * 1000:.1f} ms a step, {weights / 1e6:.1f} MB of weights\n")
        print("| profile | processes | GB/s | a step | predicted | error |\n|---|---:|---:|---:|---:|---:|")
        for profile, number in sides[1:]:
            network = networks[number]
            volume = communication(profile, number, weights, layered, weights, LAYERS, 1)
            assert volume is not None
            added = added_seconds(volume, profile, number, 0.0, network.bytes_per_second, network.latency_seconds)
            measured = statistics.median(taken[profile, number])
            print(
                f"| {profile} | {number} | {network.bytes_per_second / 1e9:.2f} | {measured * 1000:.1f} ms | "
                f"{(one + added) * 1000:.1f} ms | {(one + added) / measured - 1:+.1%} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, nargs=2, default=(5, 25))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.here:
        here(given.processes, tuple(given.steps), given.rounds)
    else:
        published()


if __name__ == "__main__":
    main()
