"""The recipe: what a user writes, as frozen blocks that check themselves and each other.

`validated` turns plain data into a `Recipe`; `pipelines.core.load` reads it from a file. Nothing here imports torch or
a data library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from pipelines.core import architecture_fields
from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Pick, Position, flatten, server_reference, show
from pipelines.core.costs import Planning, StagePlan
from pipelines.core.launch import Launch
from pipelines.core.model_types import positions_of
from pipelines.core.registry import REWARDS, STAGES, TOKENIZERS, nearest
from pipelines.core.reward_field import PickReward
from pipelines.core.shared_bases import whole_model
from pipelines.core.study_matrix import Matrix, axes_of, matrix_schema
from pipelines.core.study_options import StudyOptions, unfit_options
from pipelines.core.training_arguments import missing_trackers
from pipelines.core.yaml_positions import write_yaml

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context, Head

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
COMMIT = re.compile(r"[0-9a-f]{40}")
TOO_SHORT = re.compile(r"^has \d+ entries, must have at least ")
START = "model"
"""`from: model` reads the recipe's model as it was before any stage."""
TOKENIZER = "tokenizer"
"""The tokenizer is made like a stage, before all others."""


def _architecture(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigIssues([((), f"is {show(value)}, must be a mapping such as {{preset: bert-mini}}")])
    issues = architecture_fields.mistakes(value)
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def _folder_or_name(value: str, info: ValidationInfo) -> str:
    """A folder beside the recipe becomes absolute; anything else is a name on the Hub."""
    place = Path((info.context or {}).get("folder", Path.cwd())) / Path(value).expanduser()
    if os.path.isdir(place):
        return str(place.resolve())
    if (held := server_reference(value, "job", "model")) is not None:
        raise ValueError(held)
    if not HUB_ID.match(value):
        raise ValueError(
            f"'{value}' is neither a folder (looked for {place}) nor a Hub name such as google-bert/bert-base-uncased"
        )
    return value


FolderOrName = Annotated[str, AfterValidator(_folder_or_name)]
"""The type of a field that names a checkpoint or a tokenizer."""

RewardField = Annotated[Any, PickReward(REWARDS, "name")]
"""The type of a field that holds a reward: `{from: STAGE}`, `{checkpoint: …}`, or a named one such as `{name:
keyword, words: [good]}`."""


class Model(Block):
    """The model that the first stage reads: a shape to build from scratch, or a checkpoint to take."""

    architecture: Annotated[
        dict[str, Any] | None, BeforeValidator(_architecture), WithJsonSchema(architecture_fields.json_schema())
    ] = Field(None, validate_default=False)
    """A preset with overrides in HF config words, or any transformers `model_type` with its own words."""
    checkpoint: FolderOrName | None = None
    """A Hub id, or a folder."""
    revision: str | None = None
    """The Hub revision of `checkpoint`: a branch, tag or commit."""
    trust_remote_code: bool = False
    """Run Python code that lies beside `checkpoint`, for models that transformers has no class for. From the Hub,
    `revision` must then be a full commit. Read the code first: it can do whatever you can."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Model:
        if (self.architecture is None) == (self.checkpoint is None):
            given = "both were given" if self.checkpoint else "neither was given"
            raise ConfigIssues(
                [((), f"needs either 'architecture' (from scratch) or 'checkpoint' (pretrained); {given}")]
            )
        if self.revision is not None and self.checkpoint is None:
            raise ConfigIssues([(("revision",), "names a Hub revision, which only a 'checkpoint' has")])
        if self.trust_remote_code:
            self._code_is_pinned()
        try:
            self._saved_in()
        except (OSError, ValueError, RecursionError) as error:
            remedy = f"put the base into {self.checkpoint}/base, or name it there at base_model_name_or_path"
            sentence = f"'{self.checkpoint}' holds an adapter that cannot be opened: {error}; {remedy}"
            raise ConfigIssues([(("checkpoint",), sentence)]) from None
        return self

    def _saved_in(self) -> Path | None:
        """The folder with the model's config.json, of an adapter its base's; None for a Hub name. Raises OSError and
        ValueError where an adapter's base is lost."""
        if not Path(self.checkpoint or "").is_absolute():  # a Hub name, see `_folder_or_name`
            return None
        place = whole_model(Path(str(self.checkpoint)))
        if Path(place).is_dir():
            if place != self.checkpoint and not (Path(place) / "config.json").is_file():
                raise ValueError(f"its base '{place}' holds no config.json")
            return Path(place)
        if not HUB_ID.match(place):
            raise ValueError(f"its base '{place}' is neither a folder nor a Hub name")
        return None

    def words(self) -> dict[str, Any] | None:
        """The config's words, as far as they can be told before anything is opened: those of `architecture`, or of the
        config.json in the checkpoint's folder, of an adapter in its base's. None for a Hub name, for code of its own,
        and where there is nothing to read."""
        if self.architecture is not None:
            return dict(architecture_fields.resolve(self.architecture))
        try:
            folder = self._saved_in()
            words = {} if folder is None else architecture_fields.saved_words(folder)
        except (OSError, ValueError):  # opening it says so
            return None
        if folder is None:
            return None
        return None if self.trust_remote_code and "auto_map" in words else words

    def heads(self) -> tuple[str, ...] | None:
        """What can stand on the model, as `Head.kind` calls it; None where that cannot be told before it is opened."""
        if self.architecture is not None:
            return architecture_fields.heads(self.architecture)
        words = self.words()
        return None if words is None else architecture_fields.heads_of(words)

    def positions(self) -> int | None:
        """The model's `max_position_embeddings`; None where there is no bound, or nobody knows before it is opened."""
        words = self.words()
        return None if words is None else positions_of(words)

    def too_long(self, block: Block, key: str) -> str | None:
        """Why texts of as many tokens as a block's `key` says are too long for the model, as a sentence without its
        subject. What a checkpoint's recipe does not say is cut to its positions when it is opened."""
        length = getattr(block, key)
        if length is None or (self.checkpoint is not None and key not in block.model_fields_set):
            return None
        if (longest := self.positions()) is None or length <= longest:
            return None
        return f"is {length}, but the model has max_position_embeddings {longest}"

    def shape(self) -> dict[str, Any]:
        """The architecture with its preset written out. The vocabulary's size is the tokenizer's unless the recipe
        says.
        """
        given = self.architecture or {}
        words = dict(architecture_fields.resolve(given))
        if "vocab_size" not in given:
            words.pop("vocab_size", None)
        return words

    def doubts(self) -> list[str]:
        """One sentence for each choice of the architecture that is allowed and known to learn badly."""
        return (
            []
            if self.architecture is None
            else [f"model.architecture: {sentence}" for sentence in architecture_fields.doubts(self.architecture)]
        )

    def _code_is_pinned(self) -> None:
        """Code of others stays what it was when it was read. Raises Mistakes."""
        if self.checkpoint is None:
            raise ConfigIssues(
                [
                    (
                        ("trust_remote_code",),
                        "is about code that lies beside a 'checkpoint'; leave it out for a model from scratch",
                    )
                ]
            )
        if Path(self.checkpoint).is_absolute():  # a folder, see `_folder_or_name`
            return
        if self.revision is None or COMMIT.fullmatch(self.revision) is None:
            given = "is missing" if self.revision is None else f"is {show(self.revision)}"
            why = (
                "trust_remote_code runs the repository's code, so it must be a full commit (40 hexadecimal "
                "digits), which nobody can change"
            )
            raise ConfigIssues([(("revision",), f"{given}: {why}")])


class Tokenizer(Block):
    """Either `train` a vocabulary on the recipe's text, or take a `pretrained` one."""

    train: Annotated[Any, Pick(TOKENIZERS, "name")] = None
    """The algorithm that learns the vocabulary: `wordpiece`, `bpe`, `byte_bpe` or `unigram`, or a mapping with its
    settings."""
    vocab_size: int = Field(8192, ge=100, le=1_000_000)
    """Entries of the trained vocabulary, special tokens included."""
    max_train_samples: int | None = Field(None, ge=1)
    """Documents of each data set that the vocabulary is learnt from. Default: those that the stage reads, of streamed
    data sets the first 100,000."""
    pretrained: FolderOrName | None = None
    """A Hub id or a folder with a tokenizer."""

    model_config = ConfigDict(validate_default=False)

    @model_validator(mode="after")
    def _one_of_both(self) -> Tokenizer:
        if (self.train is None) == (self.pretrained is None):
            given = "both were given" if self.pretrained else "neither was given"
            raise ConfigIssues(
                [((), f"needs either 'train' (an algorithm) or 'pretrained' (a Hub id or folder); {given}")]
            )
        own = [key for key in ("vocab_size", "max_train_samples") if key in self.model_fields_set]
        if self.pretrained is not None and own:
            raise ConfigIssues([((key,), "belongs to 'train'; a pretrained tokenizer brings its own") for key in own])
        return self


class Stage(Block):
    """Base of every stage: what all of them have, and what `run` asks of them."""

    stage: str
    id: str = Field("", pattern=ID, validate_default=False)
    """Name of the stage in the run folder, in `from` and in overrides. Default: the stage's kind, `-2`, `-3` for
    repeats."""
    seed: int | None = Field(None, ge=0, lt=2**32)
    """Seed of everything random in this stage. Default: the recipe's."""
    source: str | None = Field(None, alias="from")
    """Id of the stage whose model is read, or `model` for the recipe's own. Default: the stage before."""

    trains: ClassVar[bool] = False
    """Whether the stage leaves a model of its own behind."""
    joins: ClassVar[bool] = True
    """Whether the stage runs on every process of `launch`; otherwise on one."""
    scores: ClassVar[bool] = False
    """Whether the model that the stage leaves scores texts. Stages that train or sample go on from the model before
    it, unless their `from` names it; a reward names it."""
    samples: ClassVar[bool] = False
    """Whether the stage has its model write without training it."""
    writes_preferences: ClassVar[bool] = False
    """Whether the stage writes preferences that others read with `datasets: [{from: ID}]`."""

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        """What is wrong with this stage at this place of the recipe, places relative to the stage."""
        return ()

    def unavailable_reason(self) -> str | None:
        """What this machine has not got that the stage needs, completing `the stage ppo …`; None when it has all.

        A recipe is valid all the same. Asked when a run begins, before anything loads.
        """
        return None

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """Ids of the stages whose results this one needs, the model's first; `model` is the recipe's own."""
        return (recipe.model_of(self),)

    def content(self, recipe: Recipe) -> dict[str, str]:
        """Content hash of every piece of outside data the stage reads, by its role. Raises DataError."""
        return {}

    def modules(self, recipe: Recipe) -> set[str]:
        """Modules, or packages, of the kinds of its tasks, which it finds by name: their code is part of its
        fingerprint.
        """
        return set()

    def scored_on(self, recipe: Recipe) -> frozenset[str]:
        """The parts of data that the stage scores models on, in words: two stages that share one read the same rows."""
        return frozenset()

    def score_names(self) -> tuple[str, ...] | None:
        """What a stage that scores measures, where one benchmark's scores are known before it runs."""
        return None

    def subjects(self) -> Mapping[str, Any]:
        """The tasks that the stage trains, by the id of the model that learns each: its own, or `id/task` of
        several."""
        return {}

    def texts(self) -> Iterator[str] | None:
        """Text that a tokenizer may be trained on, or None when the stage has none."""
        return None

    def vocabulary_rows(self) -> int | None:
        """How many documents of each data set a tokenizer is trained on where its recipe does not say; None is all."""
        rows: int | None = getattr(self, "max_train_samples", None)
        return rows

    def vocabulary_texts(self, most: int | None) -> Iterator[str] | None:
        """What a tokenizer is trained on: `texts`, only the first `most` where the recipe says so."""
        texts = self.texts()
        return texts if texts is None else islice(texts, most)

    def learnt_texts(self, folder: Path | None) -> Iterator[str] | None:
        """The part of `texts` that the complete stage in `folder` learnt from."""
        return self.texts()

    def learnt_rows(self, folder: Path | None) -> list[int | None]:
        """What of `texts` that part is, beside the stage's content: another list is another part."""
        return []

    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for this stage must have beside the usual ones."""
        return ()

    def still_there(self, folder: Path) -> bool:
        """Whether what a complete stage left outside its own `folder` is still in place."""
        return True

    def run(self, context: Context) -> None:
        """Do the work in `context.folder`."""
        raise NotImplementedError

    def cost(self, planning: Planning) -> StagePlan:
        """What the stage costs, told before anything is loaded."""
        return StagePlan(self.id, self.stage, notes=(f"the costs of a '{self.stage}' stage are not known",))

    def head_left(self) -> Head | None:
        """The head of the model that the stage leaves; None where it is the language model of the model's family."""
        return None

    def identity(self) -> dict[str, Any]:
        """The block without what does not change its result: its part of the fingerprint."""
        plain = {key: _without_licences(value) for key, value in self.plain().items()}
        for key in ("id", "from", "seed"):
            plain.pop(key, None)
        return plain


def _without_licences(value: Any) -> Any:
    """Plain data without what is said of the licences of data sets, which changes no result."""
    if isinstance(value, Mapping):
        return {key: _without_licences(entry) for key, entry in value.items() if key != "license"}
    return [_without_licences(entry) for entry in value] if isinstance(value, list) else value


def trained_by(stages: Sequence[Stage]) -> dict[str, Any]:
    """What each model learnt that these stages trained on a task, by the model's id."""
    return {model: subject for stage in stages for model, subject in stage.subjects().items()}


class Recipe(Block):
    """One job: a model, its tokenizer, and the stages it goes through."""

    name: str = Field(pattern=NAME)
    """Name of the run folder `runs/<name>`: letters, digits, `_`, `.` and `-`."""
    seed: int = Field(42, ge=0, lt=2**32)
    """Seed of every stage that has none of its own."""
    model: Model
    """The model that the first stage reads."""
    tokenizer: Tokenizer | None = None
    """Default: the checkpoint's own; from scratch, a WordPiece vocabulary of 8,192 trained on the recipe's text."""
    stages: tuple[Annotated[Any, Pick(STAGES, "stage")], ...] = Field(min_length=1)
    """What happens, in this order."""
    launch: Launch = Field(default_factory=Launch)
    """How processes are started."""
    matrix: Annotated[Matrix, WithJsonSchema(matrix_schema())] = Field(None, validate_default=False)
    """Makes the recipe a study: override paths with the values they take, or words with named entries; see
    docs/how-to/studies.md."""
    study: StudyOptions | None = None
    """How the cells of `matrix` are compared, and how each method gets its learning rate."""

    @model_validator(mode="after")
    def _stages_fit(self, info: ValidationInfo) -> Recipe:
        issues = self._unfit_study()
        if (info.context or {}).get("stages_fit", True):
            issues += self.unfit_stages()
        if issues:
            raise ConfigIssues(issues)
        return self

    def unfit_stages(self) -> list[ConfigIssue]:
        """What is wrong with the stages beside each other and for the model. One that cannot find its model, and those
        behind it, are not asked."""
        issues = [*self._unfit_models()]
        lost = [*self._lost_sources(), *(int(place[1]) for place, _ in issues)]
        known = self if not lost else self.model_copy(update={"stages": self.stages[: min(lost)]})
        for position, stage in enumerate(known.stages):
            issues += [(("stages", position, *place), message) for place, message in stage.check(known, position)]
        if self.tokenizer is None and self.model.architecture is not None and self.model.architecture.get("vocab_size"):
            issues.append(
                (
                    ("tokenizer",),
                    "is missing: a model from scratch with its own vocab_size needs to be told its tokenizer",
                )
            )
        return issues

    def _unfit_study(self) -> list[ConfigIssue]:
        if self.matrix is not None:
            return unfit_options(self.study or StudyOptions(), axes_of(self.matrix))
        return (
            []
            if self.study is None
            else [(("study",), "compares the cells of a matrix, and there is none; leave it out or add 'matrix'")]
        )

    def _unfit_models(self) -> Iterator[ConfigIssue]:
        """`from` that names one model of a stage with several wrongly, or a stage that leaves none to train on."""
        for position, stage in enumerate(self.stages):
            owner, slash, _ = (stage.source or "").partition("/")
            named = next((each for each in self.stages[:position] if each.id == owner), None)
            if named is None:  # the recipe's own model, or an id that `validated` reports
                continue
            own_models = [name for name in named.subjects() if "/" in name]
            if slash and stage.source not in own_models:
                allowed = (
                    f"Allowed: {', '.join(own_models)}"
                    if own_models
                    else f"'{owner}' leaves one model: write from: {owner}"
                )
                yield (
                    ("stages", position, "from"),
                    f"'{stage.source}' is no model of '{owner}'.{nearest(stage.source or '', own_models)} {allowed}",
                )
            elif stage.trains and not named.trains:
                models = [START, *(each.id for each in self.stages[:position] if each.trains)]
                yield (
                    ("stages", position, "from"),
                    f"'{owner}' is no stage that trains a model. Allowed: {', '.join(models)}",
                )

    def _lost_sources(self) -> list[int]:
        """The stages whose `from` names no earlier one, which `validated` says."""
        return [
            position
            for position, stage in enumerate(self.stages)
            if stage.source not in (None, START)
            and stage.source.partition("/")[0] not in [each.id for each in self.stages[:position]]
        ]

    def stage(self, stage_id: str) -> Stage:
        """The stage of that id; of `id/task`, the one that left that model. Raises KeyError."""
        stage_id = stage_id.partition("/")[0]
        for stage in self.stages:
            if stage.id == stage_id:
                match: Stage = stage
                return match
        raise KeyError(stage_id)

    def model_of(self, stage: Stage) -> str:
        """Id of the stage whose model `stage` reads: `from`, else the nearest earlier stage that trains, else `model`.

        A stage that trains or samples passes over models that score.
        """
        if stage.source is not None:
            return stage.source
        earlier = self.stages[: self.stages.index(stage)]
        goes_on = stage.trains or stage.samples
        return next(
            (before.id for before in reversed(earlier) if before.trains and not (goes_on and before.scores)), START
        )

    def lineage(self, stage: Stage) -> Iterator[Stage]:
        """The stages whose models lead to `stage`, the nearest first; `stage` itself is not among them."""
        while (source := self.model_of(stage)) != START:
            stage = self.stage(source)
            yield stage

    def seed_of(self, stage: Stage) -> int:
        """The stage's own seed, else the recipe's."""
        return self.seed if stage.seed is None else stage.seed

    def doubts(self) -> list[str]:
        """One sentence for each word that is allowed, and of which its author should know more."""
        return [*self.model.doubts(), *self.launch.doubts(), *self._unread()]

    def _unread(self) -> Iterator[str]:
        """A sentence for each pretraining before another training whose model no stage goes on from."""
        trained = [stage for stage in self.stages if stage.trains]
        read = {source for stage in self.stages for source in stage.reads(self)}
        for stage in trained[:-1]:
            if stage.stage == "pretrain" and stage.id not in read:
                remedy = f"write 'from: {stage.id}' in the stage that is to, or leave it out"
                yield f"stages.{stage.id}: is trained, but no stage reads its model; {remedy}"

    def lacking(self) -> Iterator[tuple[str, str]]:
        """(id of a stage, a sentence) for everything that stages need and this machine has not got."""
        for stage in self.stages:
            tuner = getattr(stage, "tuner", None)
            if tuner is not None and (why := tuner.unavailable_reason()) is not None:
                yield stage.id, f"the tuner {tuner.name} {why}"
            if (why := stage.unavailable_reason()) is not None:
                yield stage.id, f"the stage {stage.id} {why}"
            arguments = getattr(stage, "arguments", None)
            if arguments is not None and (why := missing_trackers(arguments.report_to)) is not None:
                yield stage.id, f"the stage {stage.id} {why}"

    def to_yaml(self) -> str:
        """The resolved recipe, as `load` would read it."""
        return write_yaml(self.plain())


def validated(data: Mapping[str, object], folder: Path, stages_fit: bool = True) -> Recipe:
    """Plain data as a recipe. Raises Mistakes; without `stages_fit` only what each block says of itself is checked."""
    issues = _unfit_sources(data, stage_ids(data))
    recipe = None
    try:
        recipe = Recipe.model_validate(data, context={"folder": folder, "stages_fit": False})
        issues += recipe.unfit_stages() if stages_fit else []
    except ValidationError as error:
        issues += flatten(error)
        within = {place[:depth] for place, _ in issues for depth in range(1, len(place))}
        # A list with wrong entries is not too short for them: pydantic says both.
        issues = [(place, text) for place, text in issues if not (place in within and TOO_SHORT.match(text))]
        issues += _beside(data, folder, [place for place, _ in issues]) if stages_fit else []
    if issues or recipe is None:
        raise ConfigIssues(issues)
    return recipe


WITHOUT_ARGUMENTS = ("from", "objective", "stage", "task", "tuner")
"""Keys of a stage whose mistakes do not depend on its `arguments`."""


def _beside(data: Mapping[str, Any], folder: Path, wrong: Sequence[Position]) -> list[ConfigIssue]:
    """Mistakes in how stages fit that stand beside those at the `wrong` places, for which there is no recipe to ask.

    Only the stages before the first that is broken are asked, since those behind it may build on it. A stage with wrong
    `arguments` is none: no other stage reads them, and of its own mistakes those count that have nothing to do with
    them. What is wrong elsewhere may be the cause of everything else.
    """
    if any(place[:1] not in (("name",), ("seed",), ("stages",)) or place == ("stages",) for place in wrong):
        return []
    hurt = {place[1] for place in wrong if place[0] == "stages" and place[2:3] == ("arguments",)}
    broken = [int(place[1]) for place in wrong if place[0] == "stages" and place[2:3] != ("arguments",)]
    stages = [
        {key: value for key, value in stage.items() if key != "arguments" or position not in hurt}
        for position, stage in enumerate(data["stages"][: min(broken, default=None)])
    ]
    asked = {**data, "name": "x", "seed": 0, "stages": tuple(stages)}
    try:
        recipe = Recipe.model_validate(asked, context={"folder": folder, "stages_fit": False})
    except ValidationError:  # without a stage, or with arguments that must be given
        return []
    return [
        (place, message)
        for place, message in recipe.unfit_stages()
        if place[0] == "stages" and (place[1] not in hurt or (place[2:3] and place[2] in WITHOUT_ARGUMENTS))
    ]


def stage_ids(data: Mapping[str, object]) -> list[str | None]:
    """Ids of the stages by position, None where there is none."""
    stages = data.get("stages")
    ids = [
        stage.get("id") if isinstance(stage, Mapping) else None
        for stage in (stages if isinstance(stages, tuple | list) else ())
    ]
    return [each if isinstance(each, str) else None for each in ids]


def _unfit_sources(data: Mapping[str, object], ids: list[str | None]) -> list[ConfigIssue]:
    """Repeated ids, and `from` that names no earlier stage."""
    issues: list[ConfigIssue] = []
    stages = data.get("stages")
    for position, stage in enumerate(stages if isinstance(stages, tuple) else ()):
        if not isinstance(stage, dict):
            continue
        if ids[position] is not None and ids[position] in ids[:position]:
            issues.append(
                (("stages", position, "id"), f"'{ids[position]}' is the id of an earlier stage too; ids must differ")
            )
        if ids[position] in (START, TOKENIZER):
            issues.append(
                (
                    ("stages", position, "id"),
                    f"'{ids[position]}' stands for the recipe's own {ids[position]}; choose another id",
                )
            )
        source = stage.get("from")
        if isinstance(source, str) and "/" in source and source.partition("/")[0] in ids[:position]:
            continue  # one model of several: the stages themselves know, see `_unfit_models`
        earlier = [each for each in ids[:position] if each is not None]
        if isinstance(source, str) and source not in (*earlier, START):
            owner = source.partition("/")[0]
            later = " (it is this stage)" if owner == ids[position] else " (it comes later)" if owner in ids else ""
            hint = nearest(source, earlier)
            issues.append(
                (
                    ("stages", position, "from"),
                    f"'{source}' is no earlier stage{later}.{hint} Allowed: {', '.join((*earlier, START))}",
                )
            )
    return issues


def schema() -> dict[str, Any]:
    """The JSON Schema of a recipe, every registered block included: for editors and forms."""
    described = Recipe.model_json_schema(by_alias=True)
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described["title"] = "Finery recipe"
    return described
