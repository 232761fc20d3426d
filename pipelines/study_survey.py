"""What of a run is complete already: its fingerprints are worked out as the run itself would, and nothing is done."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines import fingerprints
from pipelines.events import read_events
from pipelines.protocols import StopSignal
from pipelines.recipe import Recipe, Stage
from pipelines.run import Job
from pipelines.workspace import RunFolder, StageStore


class _Missing(Exception):
    """A stage is not complete."""


class _Survey(Job):
    """A job that finds its stages and makes none."""

    def _complete(
        self, stage_id: str, name: str, identity: Mapping[str, Any], inputs: list[str], content: Mapping[str, str],
        code: set[str], work: Any, stage: Stage | None = None,
    ) -> None:  # fmt: skip
        mark, _ = fingerprints.mark_of(identity, inputs, content, code)
        self.marks[stage_id] = mark
        link = self.place.folder / name
        if not link.is_symlink() or Path(os.readlink(link)).name != mark:
            raise _Missing
        folder = self.place.store.complete(mark)
        if folder is None or (stage is not None and not stage.still_there(folder)):
            raise _Missing
        self.folders[stage_id] = folder


def complete(recipe: Recipe, folder: Path, processes: int) -> bool:
    """Whether the run in `folder` is finished, and running it again, on so many processes, would do nothing again."""
    try:
        if (folder / "recipe.yaml").read_text() != recipe.to_yaml():
            return False
        if "finished" not in json.loads((folder / "manifest.json").read_text()):
            return False
    except (OSError, ValueError):
        return False
    survey = _Survey(recipe, RunFolder(folder, StageStore()), StopSignal())
    survey.__dict__["processes"] = processes  # here there may be more devices than a cell is given
    try:
        survey.make_tokenizer()
        for number, stage in enumerate(recipe.stages, start=1):
            survey.do(number, stage)
    except _Missing:
        return False
    return True


def last_event(folder: Path) -> int:
    """Id of the newest event of a run, 0 without one."""
    return max((event["id"] for event in read_events(folder / "events.jsonl")), default=0)
