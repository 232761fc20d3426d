"""A recipe and a context for models that a command was given: so that evaluating and predicting are what a stage does.

The recipe has the stages that trained the models and, last, one that asks them. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import CommandError
from pipelines.evaluation.scoring import score
from pipelines.events import EVENTS, EventLog
from pipelines.protocols import Context, StopSignal, World
from pipelines.recipe import Launch, Model, Recipe, Stage
from pipelines.trained_models import Opener, Trained
from pipelines.workspace import StageStore


class Told(EventLog):
    """Keeps warnings for the answer of a command; everything else that a stage tells is for a run."""

    def __init__(self, path: Path, warnings: list[str] | None = None) -> None:
        super().__init__(path)
        self.warnings: list[str] = [] if warnings is None else warnings

    def of(self, stage: str) -> Told:
        """The same list."""
        return Told(self.path, self.warnings)

    def emit(self, event: str, **fields: Any) -> int:
        """Keep a warning's message."""
        assert event in EVENTS
        if event == "warning":
            self.warnings.append(str(fields["message"]))
        return len(self.warnings)


def recipe_of(models: Sequence[Trained], stage: Stage) -> Recipe:
    """The stages that trained the models, then `stage`."""
    trained = {each.stage.id: each.stage for each in models if each.stage is not None}
    own = Model.model_construct(architecture=None, checkpoint=models[0].checkpoint.source, revision=None)
    return Recipe.model_construct(
        name=stage.id, seed=models[0].seed, model=own, tokenizer=None, stages=(*trained.values(), stage), launch=Launch(), matrix=None, study=None,
    )  # fmt: skip


def refuse_mistakes(recipe: Recipe, stage: Stage) -> None:
    """Raise CommandError where the models cannot be asked for this."""
    found = [message for _, message in stage.check(recipe, len(recipe.stages) - 1)]
    if found:
        raise CommandError("; ".join(dict.fromkeys(found)).replace("; name a stage that was trained on it in 'from'", "; give a model that was trained on it"))


def context_of(models: Sequence[Trained], recipe: Recipe, stage: Stage, folder: Path, stop: StopSignal | None = None) -> Context:
    """What `run` would give to the stage, on one process."""
    opener = Opener(models)
    return Context(
        stage_id=stage.id, folder=folder, fingerprint="0" * 32, seed=recipe.seed_of(stage), recipe=recipe, events=Told(folder / "events.jsonl"),
        world=World(), precision="no", cache=StageStore().data, stage_folders={}, open_model=opener.open_model, open_tokenizer=opener.open_tokenizer,
        score=score, stop=stop or StopSignal(),
    )  # fmt: skip
