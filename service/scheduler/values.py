"""What a decision is made from and what it says, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.jobs.resources import Placement, Resources


@dataclass(frozen=True)
class Waiting:
    """A job in the queue."""

    id: str
    project: str = ""
    priority: int = 0
    resources: Resources = field(default_factory=Resources)
    submitted: float = 0.0
    not_before: float = 0.0
    """End of a back-off."""
    deadline: float = math.inf
    """It must have started by then."""
    expected_seconds: float = math.inf
    """It runs at most that long, as far as is known."""
    waits_for: frozenset[str] = frozenset()
    """Jobs that have not succeeded yet and must have."""

    @property
    def order(self) -> tuple[float, float, str]:
        """Place among the jobs of its project and priority: the nearest deadline first, then the oldest."""
        return (self.deadline, self.submitted, self.id)


@dataclass(frozen=True)
class Running:
    """A job that holds resources."""

    id: str
    placement: Placement
    project: str = ""
    priority: int = 0
    resources: Resources = field(default_factory=Resources)
    began: float = 0.0
    expected_seconds: float = math.inf
    stopping: bool = False
    """It was asked to stop: its resources come free soon."""

    @property
    def ends(self) -> float:
        """When its resources come free, as far as is known."""
        return -math.inf if self.stopping else self.began + self.expected_seconds


@dataclass(frozen=True)
class Share:
    """What a project may have."""

    weight: float = 1.0
    max_gpus: int | None = None
    max_running: int | None = None


Usage = Mapping[str, Share]
"""Project -> its share; a project that is not there has weight 1 and no limits."""


@dataclass(frozen=True)
class Start:
    """Give a job this place."""

    job: str
    placement: Placement


@dataclass(frozen=True)
class Preemption:
    """Stop a job, so that another one of higher priority can start when it has ended."""

    job: str
    favours: str


@dataclass(frozen=True)
class Unplaceable:
    """A job that will never start."""

    job: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What to do now, in this order of importance: starts in the order in which they were chosen."""

    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    reserved: str | None = None
    """The first job that cannot start yet; nothing that starts now delays it."""
