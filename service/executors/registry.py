"""Which executors there are: the name on the left, where it is made on the right."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from pipelines.core.errors import CommandError

if TYPE_CHECKING:
    from service.executors.protocol import Executor
    from service.settings import Settings

EXECUTORS = {
    "local": "service.executors.local:local",
    "docker": "service.executors.docker:docker",
    "ray": "service.executors.ray:ray",
    "slurm": "service.executors.slurm:slurm",
}
"""Name -> the function that makes it from the settings. A new executor is one file and one line here."""


def either(names: Iterable[str]) -> str:
    """`a, b or c`, to stand in a sentence."""
    *others, last = names
    return f"{', '.join(others)} or {last}"


def executor_of(settings: Settings) -> Executor:
    """The executor that the settings name. Raises CommandError for an unknown name, or when it cannot be reached."""
    try:
        module, _, function = EXECUTORS[settings.executor].partition(":")
    except KeyError:
        raise CommandError(f"there is no executor '{settings.executor}'; there are: {', '.join(EXECUTORS)}") from None
    made: Executor = getattr(import_module(module), function)(settings)
    return made
