"""What a checkpoint that a model began with is called: a Hub name, a publication's, a stage's, or a folder's last part.

Nobody is told how the author's disk is arranged, and `model`, the folder in which every stage keeps its model, says nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.publishing.marker import MARKER

STAGES, RECORD = "stages", "stage.json"
"""Of a run folder: the folder of its stages; of a stage: what says that it is complete."""


def is_hub_id(checkpoint: str) -> bool:
    """Whether a checkpoint is named as on the Hub, and is no folder here."""
    return not checkpoint.startswith((".", "/", "~")) and checkpoint.count("/") <= 1 and not Path(checkpoint).exists()


def name_of(checkpoint: str) -> str:
    """The name alone: `google-bert/bert-base-uncased`, `my-model`, or `mrpc` for what that stage left."""
    if is_hub_id(checkpoint):
        return checkpoint
    folder = Path(checkpoint)
    published = _read(folder / MARKER).get("to")
    if isinstance(published, str) and published:
        return published.removeprefix("hub:") if published.startswith("hub:") else published.rstrip("/").rpartition("/")[2]
    stage = _stage(folder)
    if stage is not None:
        return stage
    return folder.name if folder.name != "model" else folder.parent.name


def told(checkpoint: str) -> str:
    """As it stands in a sentence behind "made from" or "starts from": `` `my-model` ``, or ``the model of stage `mrpc` in run `demo` ``."""
    name = f"`{name_of(checkpoint)}`"
    folder = Path(checkpoint)
    if is_hub_id(checkpoint) or (folder / MARKER).is_file() or _stage(folder) is None:
        return name
    run = next((place.parent.name for place in folder.parents if place.name == STAGES and (place.parent / "recipe.yaml").is_file()), None)
    return f"the model of stage {name}" + (f" in run `{run}`" if run else "")


def _stage(folder: Path) -> str | None:
    """Id of the stage that left a model in this folder: `…/model`, or one a task, `…/tasks/<task>/model`."""
    for place in folder.parents[:3]:
        if (place / RECORD).is_file():
            found = _read(place / RECORD).get("id")
            return found if isinstance(found, str) and found else None
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["is_hub_id", "name_of", "told"]
