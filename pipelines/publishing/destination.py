"""What every place to publish to can do, and how `to` picks one from the DESTINATIONS registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pipelines.registry import DESTINATIONS


class Destination(Protocol):
    """A place for one publication. Building one touches nothing."""

    def __init__(self, to: str, private: bool = True) -> None:
        """`to` as it stands in the recipe."""

    @staticmethod
    def claims(to: str) -> bool:
        """Whether `to` is written in this kind's syntax. Exactly one kind claims any text."""

    @staticmethod
    def mistake(to: str) -> str | None:
        """What is wrong with a `to` that this kind claims; looks at nothing outside this machine."""

    @property
    def location(self) -> str:
        """Where it is, whatever the working folder: an absolute path, a URL, `hub:owner/name`."""

    def load_from(self) -> str:
        """What a reader passes to `from_pretrained`, or the folder's name where the files must be fetched first."""

    def marker(self) -> dict[str, Any] | None:
        """`publication.json` of what lies there now, complete or not; None when there is none. Raises PublishError."""

    def holds(self, checksums: Mapping[str, str]) -> bool:
        """Whether exactly these files lie there, by reading them back. Raises PublishError when it cannot tell."""

    def push(self, folder: Path, publication: Mapping[str, Any]) -> str:
        """Put the files of `folder` there, compare what arrived with `publication["checksums"]`, write the marker last.

        An older publication is replaced; anything else that lies there is refused. Returns `location`.
        Raises PublishError with one sentence.
        """


def kind_of(to: str) -> Any:
    """The destination class whose syntax `to` is written in."""
    return next(kind for kind in (DESTINATIONS.load(name) for name in DESTINATIONS) if kind.claims(to))


def destination_of(to: str, private: bool = True) -> Destination:
    """The place that `to` names."""
    destination: Destination = kind_of(to)(to, private)
    return destination
