"""A recipe on many GPUs, before any of them is asked for: what fits, what is sent, how long it takes and what it costs.

Time of a step: computation at the rate that training reaches, and what communication adds to it (`communication`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pipelines.core.costs import StagePlan
from pipelines.core.errors import CommandError
from pipelines.core.interfaces import Profile
from pipelines.core.recipe import Recipe
from pipelines.core.registry import nearest
from pipelines.runs import hardware
from pipelines.runs.planning.communication import HOP_SECONDS, added_seconds
from pipelines.runs.planning.plan import (
    STEP_SECONDS,
    ZERO,
    Planner,
    amount_text,
    bytes_text,
    duration_text,
    unfit_for,
)

PROFILES: tuple[Profile, ...] = ("single", "ddp", "fsdp2", "zero2", "zero3")
"""Those that a plan is made for; `single` for one GPU."""
SIMPLEST: tuple[Profile, ...] = ("single", "ddp", "fsdp2")
"""Those that `launch.profile: auto` takes, the simplest first."""
LINK_SHARE = 0.8
"""Share of a link's rate that collectives reach. Assumed."""
PER_HOST = 8
NETWORKS = {450e9: 50e9, 900e9: 50e9, 300e9: 25e9}
"""Bytes a second of each GPU's network card, by its link: what clusters of such GPUs are built with. Assumed."""
SLOW_NETWORK = 12.5e9
"""Of a host's network, where GPUs have no link of their own: 100 Gb/s for all of them together. Assumed."""
_GPUS = re.compile(r"(\d+)\s*[x*]\s*([A-Za-z][\w ]*?)(?:-(\d+)\s*GB)?", re.IGNORECASE)


class Cluster(NamedTuple):
    """GPUs that are planned for."""

    name: str
    """As it was given."""
    gpu: str
    hosts: int
    per_host: int
    memory: int
    """Bytes of each GPU."""
    peak: float
    """FLOP/s of one GPU, by its data sheet, in 16 bits."""
    link: float
    """Bytes a second from each GPU to the others of its host, one way."""
    network: float
    """Bytes a second of a host to the others, one way."""
    price: float | None
    """Of one GPU for an hour."""

    @property
    def processes(self) -> int:
        return self.hosts * self.per_host

    @property
    def bytes_per_second(self) -> float:
        """What each process sends and receives at once, in a ring over all of them."""
        return LINK_SHARE * (self.link if self.hosts == 1 else min(self.link, self.network))


def cluster(
    text: str, hosts: int | None = None, network_gbps: float | None = None, price: float | None = None
) -> Cluster:
    """The GPUs that `64xH100` names, 8 to a host unless `hosts` says otherwise. Raises CommandError.

    `A100-40GB` names one with less memory than the table has. `network_gbps` is each GPU's share of its host's
    network.
    """
    found = _GPUS.fullmatch(text.strip())
    known = {name.upper(): name for name in hardware.GPUS}
    if found is None:
        raise CommandError(f"--gpus is '{text}', must be a number and a GPU such as 8xH100 or 16xA100-40GB")
    count, wanted = int(found[1]), found[2].strip().upper()
    if wanted not in known:
        names = ", ".join(sorted(hardware.GPUS))
        raise CommandError(f"--gpus names '{found[2]}', which is not known.{nearest(wanted, known)} Known: {names}")
    if not 1 <= count <= 65_536:
        raise CommandError(f"--gpus names {count} GPUs, must be from 1 to 65536")
    parts = hosts or math.ceil(count / PER_HOST)
    if count % parts:
        many = f"{parts} hosts" if hosts else f"hosts of {PER_HOST}"
        raise CommandError(f"{count} GPUs cannot be shared evenly by {many}; set --hosts to a divisor of {count}")
    facts = hardware.GPUS[known[wanted]]
    each = count // parts
    network = each * NETWORKS[facts.link] if facts.link in NETWORKS else SLOW_NETWORK
    return Cluster(
        name=text,
        gpu=known[wanted],
        hosts=parts,
        per_host=each,
        memory=int(float(found[3]) * 1e9) if found[3] else int(facts.memory),
        peak=facts.half,
        link=facts.link,
        network=network if network_gbps is None else each * network_gbps * 1e9 / 8,
        price=price,
    )


@dataclass(frozen=True)
class StageOnCluster:
    """One training stage under one profile."""

    id: str
    batch: int | None
    """Examples that a GPU takes at once where the recipe says `auto`: the most that fit; else None."""
    memory: int | None
    """Bytes of each GPU at the peak; None where it is not known."""
    fits: bool | None
    sent: int
    """Bytes that each GPU sends and receives in a step."""
    step_seconds: float | None
    added_seconds: float | None
    """Of them, those that communication adds."""
    utilisation: float | None
    """Operations of the step over what all GPUs could do in its time by their data sheet."""
    tokens_per_second: float | None
    """Of all GPUs together."""
    seconds: float | None
    """The whole stage; None where its steps are not known."""


@dataclass(frozen=True)
class ProfileOnCluster:
    """All training stages under one profile."""

    profile: Profile
    stages: tuple[StageOnCluster, ...]
    fits: bool | None
    """Whether every stage fits; None where that is not known of one."""
    seconds: float | None
    price: float | None


@dataclass(frozen=True)
class ClusterPlan:
    """A recipe on GPUs that are not here."""

    name: str
    cluster: Cluster
    precision: str
    flops_per_second: float
    """That one GPU reaches."""
    profiles: tuple[ProfileOnCluster, ...]
    asked: Profile | None
    """The profile that the recipe asks for; None where it leaves it open."""
    recommended: Profile | None
    """The simplest that fits, of those that `auto` takes."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "gpus": self.cluster._asdict(),
            "precision": self.precision,
            "flops_per_second": self.flops_per_second,
            "asked": self.asked,
            "recommended": self.recommended,
            "profiles": [asdict(each) for each in self.profiles],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """As text."""
        target = self.cluster
        hosts = f" on {target.hosts} hosts" if target.hosts > 1 else ""
        text = [
            f"{self.name} on {target.processes} x {target.gpu}{hosts}, {bytes_text(target.memory)} each, "
            f"precision {self.precision}",
            f"at {amount_text(self.flops_per_second, 'FLOP/s')} a GPU ({self.flops_per_second / target.peak:.0%} of "
            "the data sheet's peak; --flops-per-second sets another rate)",
            f"collectives at {bytes_text(target.bytes_per_second)}/s a GPU, by data sheets, assumptions and "
            "--network-gbps: what `finery doctor --hosts` measured is of the hosts here, and is not read",
        ]
        for each in self.profiles:
            fits = {True: "fits", False: "does not fit", None: "memory is not known"}[each.fits]
            text += ["", f"{each.profile}: {fits}"]
            for stage in each.stages:
                memory = "memory not known" if stage.memory is None else f"{bytes_text(stage.memory)} a GPU"
                memory += "" if stage.batch is None else f" with {stage.batch} examples at once (auto)"
                text.append(f"  {stage.id:<14} {memory}, sends {bytes_text(stage.sent)} a GPU and step")
                if stage.step_seconds is not None and stage.utilisation is not None and stage.seconds is not None:
                    speed = (
                        "" if stage.tokens_per_second is None else f", {stage.tokens_per_second:,.0f} tokens a second"
                    )
                    text.append(
                        f"  {'':<14} a step {duration_text(stage.step_seconds)} (communication adds "
                        f"{duration_text(stage.added_seconds or 0.0)}), utilisation {stage.utilisation:.1%}{speed}, "
                        f"in all about {duration_text(stage.seconds)}"
                    )
            if each.price is not None:
                text.append(f"  price          about {each.price:,.2f}")
        text += ["", f"the simplest that fits: {self.recommended or 'none'}"]
        if self.asked is not None:
            mine = next((each.fits for each in self.profiles if each.profile == self.asked), None)
            fits = {True: "fits", False: "does not fit", None: "may fit or not"}[mine]
            text.append(f"the recipe asks for {self.asked}, which {fits}")
        return [*text, *(f"note  {note}" for note in self.notes)]


def plan_on(recipe: Recipe, target: Cluster, flops_per_second: float | None = None) -> ClusterPlan:
    """The training stages of `recipe` on GPUs that need not be here, under each profile; at a rate of one GPU if given.

    Raises CommandError for a recipe that trains nothing.
    """
    device = hardware.gpu(target.gpu, target.per_host)
    asked = recipe.launch.mixed_precision
    precision = device.precision if asked == "auto" else asked
    rate = device.flops_per_second(precision, 1) if flops_per_second is None else flops_per_second
    trained = [stage for stage in recipe.stages if stage.trains]
    if not trained:
        raise CommandError(f"{recipe.name} has no stage that trains, so there is nothing to plan for {target.name}")
    plans: dict[Profile, tuple[SizedPlan, ...]] = {}
    left_out = []
    for profile in (each for each in PROFILES if (each == "single") == (target.processes == 1)):
        if (why := unfit_for(recipe, profile, precision)) is not None:
            left_out.append(f"{profile} is left out: {why}")
            continue
        planner = Planner(recipe, device, target.processes, profile, precision, rate * target.processes)
        plans[profile] = tuple(_sized(stage, planner, hardware.ROOM * target.memory) for stage in trained)
    return _on_cluster(recipe, target, precision, rate, plans, left_out)


class SizedPlan(NamedTuple):
    """A stage's plan."""

    plan: StagePlan
    batch: int | None
    """Examples at once that were looked for; None where the recipe says how many."""


def _sized(stage: Any, planner: Planner, room: float) -> SizedPlan:
    """A stage's plan, for as many examples at once as fit into `room` bytes where the recipe says `auto`."""
    arguments = stage.arguments
    if arguments.per_device_train_batch_size != "auto":
        return SizedPlan(stage.cost(planner), None)

    def of(each: int) -> StagePlan:
        chosen = arguments.model_copy(update={"per_device_train_batch_size": each})
        costs: StagePlan = stage.model_copy(update={"arguments": chosen}).cost(planner)
        return costs

    def fits(each: int) -> bool:
        memory = of(each).memory
        return memory is None or memory.peak <= room

    total = max(1, arguments.global_batch_size // planner.processes) * planner.processes
    each, _ = arguments.model_copy(update={"global_batch_size": total}).batch_sizes(planner.processes, fits)
    return SizedPlan(of(each), each)


def _on_cluster(
    recipe: Recipe,
    target: Cluster,
    precision: str,
    flops_per_second: float,
    plans: Mapping[Profile, tuple[SizedPlan, ...]],
    left_out: Sequence[str],
) -> ClusterPlan:
    """What the plans of each profile come to on these GPUs."""
    profiles = []
    for profile, stages in plans.items():
        measured = tuple(_stage(*stage, profile, target, flops_per_second) for stage in stages)
        fits = None if any(each.fits is None for each in measured) else all(each.fits for each in measured)
        times = [each.seconds for each in measured]
        seconds = None if None in times else sum(each for each in times if each is not None)
        hours = None if seconds is None else seconds / 3600 * target.processes
        price = None if target.price is None or hours is None else hours * target.price
        profiles.append(ProfileOnCluster(profile, measured, fits, seconds, price))
    fitting = [each.profile for each in profiles if each.fits and each.profile in SIMPLEST]
    notes = [note for stages in plans.values() for stage in stages for note in _notes(stage.plan, target)]
    notes += left_out
    if any(each.profile in ZERO for each in profiles):
        notes.append(
            "zero2 and zero3 are DeepSpeed's and are counted by the paper; launch.profile auto never takes them"
        )
    asked = recipe.launch.profile
    return ClusterPlan(
        recipe.name,
        target,
        precision,
        flops_per_second,
        tuple(profiles),
        None if asked == "auto" or asked == "single" else asked,
        fitting[0] if fitting else None,
        tuple(dict.fromkeys(notes)),
    )


def _notes(stage: StagePlan, target: Cluster) -> list[str]:
    notes = [f"{stage.id}: {note}" for note in stage.notes]
    asked = stage.examples_asked
    if asked is not None and asked < target.processes:
        notes.append(
            f"{stage.id}: global_batch_size {asked} gives {target.processes} GPUs less than an example each; counted "
            f"with one each, {stage.examples_per_step} a step"
        )
    return notes


def _stage(stage: StagePlan, batch: int | None, profile: Profile, target: Cluster, rate: float) -> StageOnCluster:
    room = hardware.ROOM * target.memory
    memory = None if stage.memory is None else stage.memory.peak
    sent = stage.communication
    computing = added = step = utilisation = speed = None
    if stage.flops is not None and stage.steps:
        operations = stage.flops / stage.steps / target.processes
        computing = operations / rate + STEP_SECONDS
        added = (
            0.0
            if sent is None
            else added_seconds(sent, profile, target.processes, computing, target.bytes_per_second, HOP_SECONDS)
        )
        step = computing + added
        utilisation = operations / step / target.peak
        speed = None if stage.tokens is None else stage.tokens / stage.steps / step
    return StageOnCluster(
        id=stage.id,
        batch=batch,
        memory=memory,
        fits=None if memory is None else memory <= room,
        sent=0 if sent is None else sent.bytes,
        step_seconds=step,
        added_seconds=added,
        utilisation=utilisation,
        tokens_per_second=speed,
        seconds=None if step is None or stage.steps is None else step * stage.steps,
    )
