"""What a stage is handed: its Context, and how the models and tokenizers in it are opened.

Other rooms reach a stage through the registry CONTEXT alone, so that their code counts for the stages that use them.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core import architecture_fields
from pipelines.core.interfaces import Context, Head, Score, Task, World
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.core.registry import CONTEXT
from pipelines.data import stage_files

if TYPE_CHECKING:
    from pipelines.runs.run import Job

TOKENIZER = "tokenizer"
"""The tokenizer is made like a stage, before all others."""


def context_for(job: Job, stage: Stage, attempt: Path, mark: str, world: World) -> Context:
    """Everything a stage is given."""
    stage_files.use(job.folders)
    from pipelines.runs.distributed import barrier, gather

    def score_of(task: Task) -> Score:
        found: Score = CONTEXT.load("score")(task)
        return found

    def complete(*given: Any, **keywords: Any) -> Any:
        return CONTEXT.load("complete")(*given, **keywords)

    def log_probabilities(*given: Any, **keywords: Any) -> Any:
        return CONTEXT.load("log_probabilities")(*given, **keywords)

    def writing_head() -> Head:
        head: Head = CONTEXT.load("writing_head")(job.recipe, job.recipe.model_of(stage), job.folders)
        return head

    return Context(
        stage_id=stage.id,
        folder=attempt,
        fingerprint=mark,
        seed=job.recipe.seed_of(stage),
        recipe=job.recipe,
        events=job.place.events.of(stage.id),
        world=world,
        precision=job.precision,  # type: ignore[arg-type]
        cache=job.place.store.data,
        stage_folders=job.folders,
        open_model=partial(open_model, job, stage, world),
        open_tokenizer=partial(open_tokenizer, job),
        score=score_of,
        writing_head=writing_head,
        complete=complete,
        log_probabilities=log_probabilities,
        stop=job.stop,
        barrier=barrier(world),
        gather=gather(world),
    )


def open_model(
    job: Job,
    stage: Stage,
    world: World,
    head: Head | None,
    stage_id: str | None = None,
    merge: bool = True,
    trained_head: bool = False,
    keep_base: Path | None = None,
    checkpoint: str | None = None,
) -> Any:
    """The model of a stage, or of a checkpoint: `Context.open_model`."""
    from pipelines.models import opening, quantization
    from pipelines.runs.distributed import barrier

    seed = job.recipe.seed_of(stage)
    source = stage_id or job.recipe.model_of(stage)
    if head is None:
        from pipelines.models import heads

        head = heads.read_by(job.recipe, source, job.folders) if checkpoint is None else heads.of_checkpoint(checkpoint)
    if checkpoint is not None:
        return opening.open_folder(checkpoint, head, seed, merge=merge, trained_head=trained_head)
    own = job.start
    packed = (
        quantization.settled(getattr(getattr(stage, "tuner", None), "quantization", None), job.precision)
        if keep_base
        else None
    )
    if source == START and own.checkpoint is None:
        model = opening.build(shape_of(job.recipe), head, open_tokenizer(job), seed)
    elif source != START:
        folder = job.folders[source] / "model"
        model = opening.open_folder(
            folder, head, seed, merge=merge, trained_head=trained_head, quantization=packed, start=own
        )
    else:
        model = opening.open_folder(
            str(own.checkpoint),
            head,
            seed,
            revision=own.revision,
            trained_head=trained_head,
            quantization=packed,
            start=own,
        )
    opening.check_vocabulary(model, open_tokenizer(job))
    if keep_base is not None and not model.name_or_path:
        if world.is_main:
            shutil.rmtree(keep_base, ignore_errors=True)
            model.save_pretrained(str(keep_base))
        barrier(world)()
        model.name_or_path = str(keep_base)
        if packed is not None:  # it is in a folder only now
            fresh = model.finery_new_modules
            model = opening.open_folder(keep_base, head, seed, quantization=packed, start=own)
            model.finery_new_modules = fresh
    return model


def open_tokenizer(job: Job, stage_id: str | None = None, checkpoint: str | None = None) -> Any:
    """The run's tokenizer; that of a stage as the stage left it, with its chat template; that of a checkpoint."""
    from pipelines.models import tokenizer

    if checkpoint is not None:
        return tokenizer.open_tokenizer(checkpoint)
    kept = job.folders[stage_id] / "model" if stage_id in job.folders else job.folders[TOKENIZER] / "model"
    own = kept if (kept / "tokenizer_config.json").is_file() else job.folders[TOKENIZER] / "model"
    return tokenizer.open_tokenizer(str(own), start=job.start)


def shape_of(recipe: Recipe) -> dict[str, Any]:
    """The architecture with its preset written out. The vocabulary's size is the tokenizer's unless the recipe says."""
    given = recipe.model.architecture or {}
    shape = dict(architecture_fields.resolve(given))
    if "vocab_size" not in given:
        shape.pop("vocab_size", None)
    return shape
