"""What training writes: checkpoints that count only when complete, and the model and metrics that a stage leaves.

A checkpoint counts once its completion marker is written, last of all. A kill while it is written leaves a folder
without a marker; it is removed at the next start, and training continues from the newest marked one. Older ones go only
after that, and lose their marker first.

A stage leaves `model/` with weights, tokenizer and `head.json`, and `metrics.json`. A model with `finery_beside`,
models by name, leaves each of them in a folder of that name beside `model/`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from pipelines.core.files import COMPLETE, restored, write_json
from pipelines.core.interfaces import Context, Head
from pipelines.models import fsdp
from pipelines.tuners.tuner import Tuner

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

State = Mapping[str, Any]
"""What a trainer keeps in a checkpoint beside its weights, as JSON."""


def sync(folder: Path) -> None:
    """Force every file of a folder to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def mark_complete(folder: Path, state: State) -> None:
    """Declare a checkpoint whole. `state` is what the loop needs back beside the trainer's own files."""
    own = folder / TRAINER_STATE_NAME
    if own.is_file():  # transformers writes NaN and Infinity into it, which `restored` gives back
        write_json(own, json.loads(own.read_text(encoding="utf-8")))
    sync(folder)
    write_json(folder / COMPLETE, state)


def unmark(folder: Path) -> None:
    """Declare that a checkpoint is about to be written again."""
    (folder / COMPLETE).unlink(missing_ok=True)


def newest_complete(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step."""
    return next(reversed(_complete(folder)), None)


def _complete(folder: Path) -> list[Path]:
    """The complete checkpoints, in the order of their steps."""
    complete = [path for path in folder.glob("checkpoint-*") if (path / COMPLETE).is_file()]
    return sorted(complete, key=lambda path: int(path.name.rpartition("-")[2]))


def rotate(folder: Path, limit: int, best: str | None) -> None:
    """Delete the oldest complete checkpoints until `limit` are left; never the newest and the `best` one."""
    complete = _complete(folder)
    kept = {path.name for path in complete[-1:]} | ({Path(best).name} if best is not None else set())
    spare = [path for path in complete if path.name not in kept]
    for path in spare[: max(0, len(complete) - limit)]:
        unmark(path)
        shutil.rmtree(path, ignore_errors=True)


def state_of(checkpoint: Path) -> State:
    """What `mark_complete` was given."""
    state: State = restored(json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8")))
    return state


def save_stage(
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    metrics: Mapping[str, Any],
    tuner: Tuner | None = None,
) -> None:
    """Write the stage's result, whole or not at all, as the tuner saves it.

    Called on every process; the main one writes.
    """
    beside: Mapping[str, Any] = getattr(model, "finery_beside", {})
    with fsdp.gathered(model, *(each for each in beside.values() if isinstance(each, nn.Module)), world=context.world):
        if context.world.is_main:
            temporary = context.folder / "model.tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            if tuner is None:
                model.save_pretrained(str(temporary))
            else:
                tuner.save(model, temporary)
            tokenizer.save_pretrained(str(temporary))
            name_final_base(temporary, context)
            write_head(temporary, head)
            for name, other in beside.items():
                shutil.rmtree(context.folder / name, ignore_errors=True)
                other.save_pretrained(str(context.folder / name))
            final = context.folder / "model"
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
            write_json(context.folder / "metrics.json", metrics)
    context.barrier()


def write_head(folder: Path, head: Head) -> None:
    """Write down which head the model was trained with."""
    (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))


def name_final_base(folder: Path, context: Context) -> None:
    """An adapter names its base by path: that of the complete stage, not of the attempt."""
    path = folder / "adapter_config.json"
    if path.exists():
        config = json.loads(path.read_text())
        attempt, complete = str(context.folder), str(context.folder).removesuffix(".partial")
        config["base_model_name_or_path"] = str(config["base_model_name_or_path"]).replace(attempt, complete)
        path.write_text(json.dumps(config, indent=2))


def save_learnt(weights: Mapping[str, Tensor], arguments: TrainingArguments, folder: str | None) -> None:
    """Write `weights` where the Trainer looks for them when it resumes. What is missing there stays as the stage
    opened it."""
    if not arguments.should_save:
        return
    place = folder or arguments.output_dir
    os.makedirs(place, exist_ok=True)
    safetensors.torch.save_file(dict(weights), os.path.join(place, SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
    torch.save(arguments, os.path.join(place, TRAINING_ARGS_NAME))
