"""One rank of a stage: what torchrun starts. It does the stage's work beside the other ranks and reports to the driver."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from pipelines import recipe as recipes
from pipelines.context import TOKENIZER, context_for
from pipelines.errors import EXIT_DONE, EXIT_FAILED, FineryError, Unforeseen
from pipelines.failures import understood
from pipelines.launch import join_world, write_failure
from pipelines.protocols import StopSignal
from pipelines.ranks import Heartbeat
from pipelines.run import Job
from pipelines.signals import stop_on_signals
from pipelines.workspace import RunFolder, StageStore


def run_rank(run_folder: Path, stage_id: str, folder: Path, processes: int) -> int:
    """Run the stage on this rank. Returns the exit code; an error is left for the driver in the stage's folder."""
    stop = StopSignal()
    try:
        with stop_on_signals(stop):
            world = join_world(processes)
            recipe = recipes.load(run_folder / "recipe.yaml")
            job = Job(recipe, RunFolder(run_folder, StageStore()), stop)
            job.folders = complete_stages(run_folder)
            stage = recipe.stage(stage_id)
            mark = folder.name.removesuffix(".partial")
            with Heartbeat(run_folder, world.rank) as heart:
                stage.run(replace(context_for(job, stage, folder, mark, world), beat=heart.step))
    except BaseException as error:
        failure = understood(error)
        if isinstance(failure, Unforeseen):
            traceback.print_exc()
        write_failure(folder, failure)
        sys.stderr.flush()
        # The other ranks may wait for this one for ever: leave without the clean-up that would wait for them too.
        os._exit(failure.exit_code if isinstance(failure, FineryError) else EXIT_FAILED)
    return EXIT_DONE


def complete_stages(run_folder: Path) -> dict[str, Path]:
    """Folders of the complete stages that a run links to, by id."""
    found = {}
    for link in run_folder.glob("stages/*"):
        target = link.resolve()
        if target.is_dir() and not target.name.endswith(".partial"):
            found[link.name.partition("-")[2]] = target
            found |= {f"{link.name.partition('-')[2]}/{model.parent.name}": model.parent for model in target.glob("tasks/*/model")}
    if (run_folder / "tokenizer").exists():
        found[TOKENIZER] = (run_folder / "tokenizer").resolve()
    return found
