"""The trained models behind the names that a command was given, and a recipe and a context to ask them with.

A run folder holds a model for each of its stages; a stage's folder, or a published one, holds one, or one a task.
What they were trained on stands in `recipe.yaml` of a run or a publication and in `stage.json` of a stage; a folder
or a Hub repository that others made says nothing. To evaluate and to predict is what an evaluate stage does: the
recipe has the stages that trained the models and, last, one that asks them. Nothing is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pipelines.core.errors import CommandError, RecipeError
from pipelines.core.events import EVENTS, EventLog
from pipelines.core.files import RECORD, JSONObject
from pipelines.core.interfaces import Context, Head, World
from pipelines.core.launch import Launch
from pipelines.core.load import read
from pipelines.core.recipe import START, Model, Recipe, Stage
from pipelines.core.registry import STAGES
from pipelines.core.results import MARKER, stage_folder
from pipelines.core.signals import StopSignal
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads, opening
from pipelines.models.checkpoint import Checkpoint
from pipelines.models.tokenizer import open_tokenizer
from pipelines.runs.workspace import StageStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NOT_LEARNT = ("from", "tuner", "early_stopping_patience")
"""Keys of a training stage that say nothing about how its model is asked."""
SEED = 42


@dataclass(frozen=True)
class TrainedModel:
    """One model, and the stage that trained it."""

    id: str
    """The stage's id, `stage/task` where it trained several, or `model` where nothing is known."""
    checkpoint: Checkpoint
    stage: Stage | None = None
    """The stage as its block says, without its tuner; None where nothing is known."""
    seed: int = SEED
    """The seed that its run evaluates with."""

    @property
    def subject(self) -> Any:
        """What the model learnt: `task`, `max_length` and so on; None where that is not known."""
        return None if self.stage is None else self.stage.subjects().get(self.id)

    @property
    def task(self) -> str | None:
        """The name of the task, or the model's id where the task was described in place."""
        subject = self.subject
        return None if subject is None else subject.task if isinstance(subject.task, str) else self.id

    def renamed(self, stage_id: str) -> TrainedModel:
        """The same under another stage's id."""
        stage = None if self.stage is None else self.stage.model_copy(update={"id": stage_id})
        return replace(self, id=stage_id + self.id[len(self.id.partition("/")[0]) :], stage=stage)


def find_all(given: Sequence[str]) -> list[TrainedModel]:
    """The models behind all names, their ids made different. Raises CommandError."""
    every: list[TrainedModel] = []
    for name in given:
        models = find(name)
        taken = {each.id.partition("/")[0] for each in every}
        for stage_id in dict.fromkeys(each.id.partition("/")[0] for each in models):
            numbered = (f"{stage_id}-{number}" for number in count(2))
            free = next(other for other in chain([stage_id], numbered) if other not in taken)
            every += [
                each.renamed(free) if free != stage_id else each
                for each in models
                if each.id.partition("/")[0] == stage_id
            ]
    return every


def find(given: str) -> list[TrainedModel]:
    """The models behind a name: those of a run's stages that were trained on a task, else the one that it stands
    for. Raises CommandError."""
    folder = Path(given).expanduser()
    if (folder / "stages").is_dir():
        models = _of_run(folder, given)
        if models:
            return models
    if (folder / RECORD).is_file():
        models = _of_stage(folder, given)
        if models:
            return models
    if (folder.parent / RECORD).is_file() and folder.name == "model":
        models = _of_stage(folder.parent, given)
        if models:
            return models
    if folder.parent.parent.name == "tasks" and (folder.parent.parent.parent / RECORD).is_file():
        return [
            each for each in _of_stage(folder.parent.parent.parent, given) if each.id.endswith(f"/{folder.parent.name}")
        ]
    checkpoint = checkpoints.find(given)
    place = folder if folder.is_dir() else _from_hub(given)
    return [_published(place, checkpoint) if place is not None else TrainedModel(START, checkpoint)]


def _of_run(folder: Path, given: str) -> list[TrainedModel]:
    """The latest model of each task of a run, in the order of its stages."""
    try:
        source = read(folder / "recipe.yaml")
    except RecipeError:
        return []
    seed = source.data.get("seed", SEED)
    latest: dict[str, TrainedModel] = {}
    for number, (stage_id, block) in enumerate(zip(source.ids, source.data.get("stages", ()), strict=True), start=1):
        if stage_id is None or not ((place := stage_folder(folder, number, stage_id)) / RECORD).is_file():
            continue
        for each in _models_of(place, given, _stage_of(block, stage_id, source.folder), seed, folder):
            if each.task is not None:
                latest.pop(each.task, None)
                latest[each.task] = each
    return list(latest.values())


def _of_stage(folder: Path, given: str) -> list[TrainedModel]:
    """The models of a stage's folder."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        block, stage_id = dict(record["identity"]), str(record["id"])
        # a block leaves out what is its default, and older records do not name the stage either
        block.setdefault("stage", record.get("stage") or ("multi_task" if "tasks" in block else "supervised"))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    run = folder.parent.parent if (folder.parent.parent / "recipe.yaml").is_file() else None
    return _models_of(folder, given, _stage_of(block, stage_id, folder), int(block.get("seed", SEED)), run)


def _models_of(folder: Path, given: str, stage: Stage | None, seed: int, run: Path | None) -> list[TrainedModel]:
    """The models that a stage left: one a task, or one."""
    if stage is None or not stage.subjects():
        return []
    models = []
    for name in stage.subjects():
        part = name.partition("/")[2]
        place = folder / "tasks" / part / "model" if part else folder / "model"
        if part and not place.is_dir():
            place = folder / "model"
        if place.is_dir():
            tokenizer = next(
                (
                    each
                    for each in (place, folder / "model", *([run / "tokenizer" / "model"] if run else []))
                    if (each / "tokenizer_config.json").is_file()
                ),
                place,
            )
            models.append(TrainedModel(name, Checkpoint(given, str(place), str(tokenizer)), stage, seed))
    return models


def _stage_of(block: JSONObject, stage_id: str, folder: Path, files_exist: bool = False) -> Stage | None:
    """The stage behind a block, without what has no part in asking its model; None where it is unknown, or where its
    files must exist and do not lie below `folder`."""
    kind = block.get("stage")
    if not isinstance(kind, str) or kind not in STAGES:
        return None
    base: type[Stage] = STAGES.load(kind)
    allowed = set(base.keys()) - set(NOT_LEARNT)
    settings = {key: tuples(value) for key, value in block.items() if key in allowed and value is not None}
    try:
        return base.model_validate(settings | {"id": stage_id}, context={"folder": folder, "files_exist": files_exist})
    except ValidationError:
        return None


def tuples(value: Any) -> Any:
    """Plain data as blocks take it: JSON has lists where they have tuples."""
    if isinstance(value, Mapping):
        return {key: tuples(entry) for key, entry in value.items()}
    return tuple(tuples(entry) for entry in value) if isinstance(value, list | tuple) else value


def _published(folder: Path, checkpoint: Checkpoint) -> TrainedModel:
    """A published model: its stage is the one that its `publish` stage read."""
    unknown = TrainedModel(START, checkpoint)
    try:
        to = json.loads((folder / MARKER).read_text(encoding="utf-8"))["to"]
        source = read(folder / "recipe.yaml")
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return unknown
    blocks = [block for block in source.data.get("stages", ()) if isinstance(block, Mapping)]
    seed = source.data.get("seed", SEED)
    places = [at for at, block in enumerate(blocks) if block.get("stage") == "publish" and block.get("to") == to]
    if not places:
        return unknown
    before = blocks[: places[-1]]
    trains = [
        str(block.get("id"))
        for block in before
        if block.get("stage") in STAGES and STAGES.load(str(block["stage"])).trains
    ]
    named = str(blocks[places[-1]].get("from") or (trains[-1] if trains else START))
    block = next((block for block in before if block.get("id") == named.partition("/")[0]), None)
    if block is None:
        return unknown
    # its data lies below a working folder, this one or one that the publication was put into, or out of reach
    homes = dict.fromkeys((folder, Path.cwd(), *folder.absolute().parents))
    stage_id = named.partition("/")[0]
    stages = (_stage_of(block, stage_id, home, files_exist=True) for home in homes)
    stage = next((each for each in stages if each is not None), None) or _stage_of(block, stage_id, folder)
    if stage is None or named not in stage.subjects():
        return unknown
    return TrainedModel(named, checkpoint, stage, seed)


def _from_hub(name: str) -> Path | None:
    """What a repository on the Hub says about itself, if it was published by Finery and can be reached."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["recipe.yaml", MARKER]))
    except Exception:  # out of reach, or no such repository: opening the model says so, with a sentence of its own
        return None


class Opener:
    """Opens the models that a command was given, by the ids that stages know them by."""

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        self.by_id = {each.id: each for each in models}
        self.only = models[0] if len(models) == 1 else None
        self.current = models[0]
        """The model that was opened last: its tokenizer is the one that is asked for without a name."""

    def find(self, model_id: str | None) -> TrainedModel:
        """The model of that id. Raises CommandError."""
        model = self.by_id.get(model_id or START, self.only)
        if model is None:
            raise CommandError(f"there is no model '{model_id}' among {', '.join(self.by_id)}")
        return model

    def open_model(
        self,
        head: Head | None,
        stage_id: str | None = None,
        merge: bool = True,
        trained_head: bool = False,
        keep_base: Path | None = None,
        checkpoint: str | None = None,
    ) -> PreTrainedModel:
        """As `ModelOpener` promises."""
        if checkpoint is None:
            self.current = self.find(stage_id)
        source = checkpoint or self.current.checkpoint.source
        head = head or heads.of_checkpoint(source)
        model = opening.open_folder(source, head, self.current.seed, merge=merge, trained_head=trained_head)
        if checkpoint is None:
            opening.check_vocabulary(model, self.open_tokenizer())
        return model

    def open_tokenizer(self, stage_id: str | None = None, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
        """As `TokenizerOpener` promises."""
        trained = self.current if stage_id is None else self.find(stage_id)
        return open_tokenizer(checkpoint or trained.checkpoint.tokenizer)


class WarningLog(EventLog):
    """Keeps warnings for the answer of a command; everything else that a stage tells is for a run."""

    def __init__(self, path: Path, warnings: list[str] | None = None) -> None:
        super().__init__(path)
        self.warnings: list[str] = [] if warnings is None else warnings

    def of(self, stage: str) -> WarningLog:
        """The same list."""
        return WarningLog(self.path, self.warnings)

    def emit(self, event: str, **fields: Any) -> int:
        """Keep a warning's message."""
        assert event in EVENTS
        if event == "warning":
            self.warnings.append(str(fields["message"]))
        return len(self.warnings)


def recipe_of(models: Sequence[TrainedModel], stage: Stage) -> Recipe:
    """The stages that trained the models, then `stage`."""
    trained = {each.stage.id: each.stage for each in models if each.stage is not None}
    own = Model.model_construct(architecture=None, checkpoint=models[0].checkpoint.source, revision=None)
    return Recipe.model_construct(
        name=stage.id,
        seed=models[0].seed,
        model=own,
        tokenizer=None,
        stages=(*trained.values(), stage),
        launch=Launch(),
        matrix=None,
        study=None,
    )


def refuse_mistakes(recipe: Recipe, stage: Stage) -> None:
    """Raise CommandError where the models cannot be asked for this."""
    messages = [message for _, message in stage.check(recipe, len(recipe.stages) - 1)]
    if messages:
        raise CommandError(
            "; ".join(dict.fromkeys(messages)).replace(
                "; name a stage that was trained on it in 'from'", "; give a model that was trained on it"
            )
        )


def context_of(
    models: Sequence[TrainedModel],
    recipe: Recipe,
    stage: Stage,
    folder: Path,
    stop: StopSignal | None = None,
    opener: Opener | None = None,
) -> Context:
    """What `run` would give to the stage, on one process. `opener` is one of these models that is kept."""
    opener = opener or Opener(models)
    return Context(
        stage_id=stage.id,
        folder=folder,
        fingerprint="0" * 32,
        seed=recipe.seed_of(stage),
        recipe=recipe,
        events=WarningLog(folder / "events.jsonl"),
        world=World(),
        precision="no",
        cache=StageStore().data,
        stage_folders={},
        open_model=opener.open_model,
        open_tokenizer=opener.open_tokenizer,
        stop=stop or StopSignal(),
    )
