"""Runs in forked children of a warm process: seconds instead of the ten that a fresh interpreter takes to import torch.

Plain functions, importable by the fork server; every one of them runs a whole recipe and may kill its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

WARM = ["pipelines.run", "pipelines.models", "pipelines.trainers.loop", "pipelines.evaluation.evaluate", "pipelines.evaluation.predict", "peft"]


def server() -> Any:
    """A multiprocessing context whose children start with torch and transformers imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    return context


def run_recipe(recipe: str, overrides: list[str], folder: str, home: str, death: tuple[str, int] | None = None) -> None:
    """Run a recipe into `folder`; `death` is (place, count): SIGKILL at the count-th passing of the place."""
    os.environ["FINERY_HOME"] = home
    os.chdir(Path(folder).parent)
    from pipelines import recipe as recipes
    from pipelines.run import run
    from pipelines.workspace import StageStore

    if death is not None:
        _arrange_death(*death)
    run(recipes.load(recipe, overrides), Path(folder), StageStore(Path(home)))


def _arrange_death(place: str, count: int) -> None:
    """Kill this process, without any clean-up, when it passes `place` for the `count`-th time."""
    from pipelines.trainers import checkpoints, saving
    from pipelines.trainers.loop import FineryTrainer

    holder, name = {
        "training step": (FineryTrainer, "training_step"),
        "optimizer state being saved": (FineryTrainer, "_save_optimizer_and_scheduler"),
        "checkpoint about to be marked": (checkpoints, "mark_complete"),
        "result about to be saved": (saving, "save_stage"),
    }[place]
    original = getattr(holder, name)
    passed = [0]

    def dying(*arguments: Any, **keywords: Any) -> Any:
        passed[0] += 1
        if passed[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(holder, name, dying)
