"""What a training stage leaves behind: `model/` with weights, tokenizer and `head.json`, and `metrics.json`.

A model with `finery_beside`, models by name, leaves each of them in a folder of that name beside `model/`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.protocols import Context, Head, Tuner


def save_stage(
    context: Context, model: Any, tokenizer: Any, head: Head, metrics: Mapping[str, float], tuner: Tuner | None = None
) -> None:
    """Write the stage's result, whole or not at all, as the tuner saves it. Only the main process writes."""
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
        for name, other in getattr(model, "finery_beside", {}).items():
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


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically: temporary name, fsync, rename."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
        json.dump(data, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def name_final_base(folder: Path, context: Context) -> None:
    """An adapter names its base by path: that of the complete stage, not of the attempt."""
    path = folder / "adapter_config.json"
    if path.exists():
        config = json.loads(path.read_text())
        attempt, complete = str(context.folder), str(context.folder).removesuffix(".partial")
        config["base_model_name_or_path"] = str(config["base_model_name_or_path"]).replace(attempt, complete)
        path.write_text(json.dumps(config, indent=2))
