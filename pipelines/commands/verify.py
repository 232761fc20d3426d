"""`finery verify`: whether a published folder is what was published, and scores what it says.

Checksums, signature and whatever states scores are looked at first, without running anything
(`pipelines.publishing.integrity`). Then the evaluate stages of the folder's own recipe are done again with its weights,
where the data that they read is at hand with the same SHA-256. Code from the folder runs only with `trust_remote_code`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import (
    CommandError,
    DataError,
    DiskFull,
    ModelError,
    OutOfMemory,
    RecipeError,
    Stopped,
    Unforeseen,
    understood,
)
from pipelines.core.files import JSONObject, read_json, write_text
from pipelines.core.interfaces import Context, Head, World
from pipelines.core.load import load
from pipelines.core.recipe import Model, Recipe
from pipelines.core.registry import TASK_KINDS
from pipelines.core.results import MARKER, BenchmarkScores, read_scores
from pipelines.core.yaml_positions import read_yaml, write_yaml
from pipelines.publishing import sources
from pipelines.publishing.agreement import Agreement, compare, differences_from
from pipelines.publishing.integrity import RECIPE, problems, published
from pipelines.publishing.manifest import MANIFEST, older, stated_scores
from pipelines.publishing.provenance import installed
from pipelines.publishing.requirements import only_of
from pipelines.publishing.signature import SIGNATURE, public_key

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.evaluation.evaluate import Evaluate

INTEGRITY_ONLY = (
    "checksums without a signature prove integrity, not origin: whoever changes a file can write new checksums"
)
NOT_CHECKED = f"{SIGNATURE} was not checked: give the publisher's key with --public-key"
OLDER = "was published by a Finery that did not write its scores and sources into the manifest; publish the run again"


@dataclass(frozen=True)
class VerifyRequest:
    """What `finery verify` was asked."""

    folder: str
    data: str | None = None
    public_key: str | None = None
    trust_remote_code: bool = False


@dataclass
class Rescored:
    """What scoring again found out."""

    agreements: list[Agreement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not scored, and why."""
    problems: list[str] = field(default_factory=list)
    """What cannot be scored although all that it needs is here."""
    differences: list[str] = field(default_factory=list)
    """In what this machine differs from the one that measured."""


def answer(fields: JSONObject) -> JSONObject:
    """What holds, what does not, and what was not looked at, as plain data. Raises FineryError."""
    request = VerifyRequest(**fields)
    folder = published(request.folder)
    key = None if request.public_key is None else public_key(request.public_key)
    data = folder_of_data(request.data)
    found = problems(folder, key)
    notes = []
    if key is None:
        notes.append(NOT_CHECKED if (folder / SIGNATURE).is_file() else INTEGRITY_ONLY)
    if found:
        rescored = Rescored(notes=["the scores were not measured again: the folder is not what was published"])
    else:
        rescored = score_again(folder, data, request.trust_remote_code)
    found += rescored.problems + [each.sentence() for each in rescored.agreements if not each.holds]
    return {
        "folder": str(folder),
        "verified": not found,
        "signed": key is not None and not found,
        "files": len(checksums) if isinstance(checksums := read_json(folder / MARKER).get("checksums"), dict) else 0,
        "problems": found,
        "scores": [each.plain() for each in rescored.agreements],
        "notes": [*notes, *rescored.notes],
        "differences": rescored.differences,
    }


def folder_of_data(given: str | None) -> Path | None:
    """The folder of `--data`. Raises CommandError."""
    if given is None:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise CommandError(f"--data '{given}' is no folder; give one that holds the files that the recipe reads")
    return folder


def roots_with(data: Path | None) -> str:
    """FINERY_DATA with absolute folders, that of `--data` before them."""
    given = [each for each in os.environ.get("FINERY_DATA", "").split(os.pathsep) if each]
    folders = [*([] if data is None else [data]), *map(Path, given)]
    return os.pathsep.join(str(each.expanduser().absolute()) for each in folders)


@contextmanager
def looking_in(data: Path | None) -> Iterator[None]:
    """Data sets of the Hub are read from `data` too."""
    before = os.environ.get("FINERY_DATA")
    os.environ["FINERY_DATA"] = roots_with(data)
    try:
        yield
    finally:
        os.environ.pop("FINERY_DATA") if before is None else os.environ.update({"FINERY_DATA": before})


def score_again(folder: Path, data: Path | None, trust: bool) -> Rescored:
    """Do the evaluations again that the folder's scores come from."""
    from pipelines.runs import hardware

    if older(folder):
        return Rescored(notes=[f"the scores were not measured again: '{folder}' {OLDER}"])
    manifest = read_json(folder / MANIFEST)
    stated = stated_scores(manifest)
    if not stated:
        return Rescored(notes=["no scores are stated, so none were measured again"])
    if not trust and needs_its_code(folder):
        return Rescored(
            notes=[
                "the scores were not measured again: the model opens only with Python code of its folder; read it, "
                "then give --trust-remote-code"
            ]
        )
    differences = differences_from(manifest, hardware.describe(), installed())
    rescored = Rescored(differences=differences)
    with tempfile.TemporaryDirectory(prefix="verify-") as place, looking_in(data):
        try:
            found = sources.find(manifest["sources"], data)
            names = found.place(manifest["sources"], Path(place), (RECIPE, "scores"))
        except DataError as error:
            rescored.problems.append(str(error))
            return rescored
        absent = ["the scores were not measured again", *found.missing] if found.missing else []
        try:
            labels = manifest["model"].get("labels", ()) if absent else ()
            recipe = recipe_in(folder, Path(place), names, manifest["model"], labels)
        except (RecipeError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            first = error.mistakes[0] if isinstance(error, RecipeError) else None
            sentence = (
                f"{first.key}: {first.message}" if first else " ".join(f"{type(error).__name__}: {error}".split())
            )
            rescored.notes += absent
            if not absent:
                rescored.problems.append(f"'{RECIPE}' cannot be run, so no score can be measured again: {sentence}")
            return rescored
        opener = Published(folder, str(manifest["model"]["stage"]), recipe.seed, trust)
        for stage_id in dict.fromkeys(each.stage for each in stated.values()):
            mine = {name: each for name, each in stated.items() if each.stage == stage_id}
            try:
                measured = measure(Path(place), recipe, manifest, stage_id, mine, opener)
            except (Stopped, OutOfMemory, DiskFull):
                raise
            except CommandError as error:
                rescored.notes += [*absent, f"what '{stage_id}' measured was not measured again: {error}"]
            except Exception as error:  # whatever a model, a tokenizer or a recipe that somebody changed makes of it
                if isinstance(why := understood(error), OutOfMemory | DiskFull):
                    raise why from error
                if absent and isinstance(why, DataError | Unforeseen):  # it may read what is missing
                    rescored.notes += absent
                    continue
                sentence = next(iter(str(why).splitlines()), type(error).__name__)
                rescored.problems.append(f"what '{stage_id}' measured cannot be measured again: {sentence}")
            else:
                for name, each in mine.items():
                    again = measured[name].metrics if name in measured else {}
                    rescored.agreements += compare(each, again, exact=not differences)
    rescored.notes = [*dict.fromkeys(rescored.notes)]
    if forms := [each["form"] for each in manifest.get("exports") or () if each["scores"]]:
        rescored.notes.append(f"the scores of its exports ({', '.join(forms)}) were not measured again")
    return rescored


def needs_its_code(folder: Path) -> bool:
    """Whether the model is of a type that neither transformers nor Finery has, and code for it lies in the folder."""
    from transformers import CONFIG_MAPPING

    from pipelines.architectures.registration import register

    register()
    place = folder / "base" if (folder / "adapter_config.json").is_file() else folder
    config = read_json(place / "config.json")
    named = str(config.get("auto_map")).replace("'", " ").split()
    code = any(os.path.isfile(place / f"{each.partition('.')[0]}.py") for each in named)
    kind = config.get("model_type")
    return code and isinstance(kind, str) and kind not in CONFIG_MAPPING


def recipe_in(
    folder: Path, place: Path, names: Mapping[str, str], made: JSONObject, labels: Sequence[str] = ()
) -> Recipe:
    """The publication's recipe up to its publish stage, with its files where `names` says. Raises RecipeError.

    `made` is the manifest's `model`. `labels` are its classes, for where the rows that they were found in are missing.
    """
    data, _ = read_yaml(folder / RECIPE)
    data = sources.renamed(data, names)
    ids = [stage["id"] for stage in data["stages"]]
    data["stages"] = data["stages"][: ids.index(made["publish"]) if made["publish"] in ids else len(ids)]
    for stage in data["stages"]:
        task = stage.get("task")
        if labels and isinstance(task, dict) and stage["id"] == made["stage"]:
            kind = str(task.get("kind"))
            if kind in TASK_KINDS and TASK_KINDS.load(kind).finds_labels:
                task.setdefault("labels", [*labels])
    write_text(place / RECIPE, write_yaml(data))
    return load(place / RECIPE)


def measure(
    place: Path,
    recipe: Recipe,
    manifest: JSONObject,
    stage_id: str,
    stated: Mapping[str, BenchmarkScores],
    opener: Published,
) -> dict[str, BenchmarkScores]:
    """The scores of one evaluate stage, by benchmark, measured with the model of `opener`.

    Raises CommandError where its data is not at hand or it needs more than this model, FineryError for anything else.
    """
    stage: Any = next((each for each in recipe.stages if each.id == stage_id and each.stage == "evaluate"), None)
    if stage is None:
        raise ModelError(f"'{RECIPE}' has no such evaluate stage before the publication")
    before = next((each.get("data") or {} for each in manifest["stages"] if each["id"] == stage_id), {})
    stage = only_of(stage, recipe, opener.model, [*stated])
    at = [each.id for each in recipe.stages].index(stage_id)
    recipe = recipe.model_copy(update={"stages": (*recipe.stages[:at], stage)})
    try:
        now = stage.content(recipe)
    except DataError as error:
        raise CommandError(f"its data is not at hand: {error}") from error
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if changed:
        raise CommandError(f"its data is missing here, or is not the data that was read ({', '.join(changed)})")
    out = place / "scores" / stage_id
    out.mkdir(parents=True)
    stage.run(context_for(recipe, stage, out, opener, manifest))
    return {each.benchmark: each for each in read_scores(out, stage_id)}


class Published:
    """Opens the model in a published folder, under the id of the stage that trained it."""

    def __init__(self, folder: Path, model: str, seed: int, trust: bool) -> None:
        self.folder, self.model, self.seed = folder, model, seed
        # what transformers may run is what the checksums cover, and only where that was allowed
        own = Model.model_construct(architecture=None, checkpoint=str(folder), revision=None, trust_remote_code=True)
        self.start = own if trust else None

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
        from pipelines.models import heads, opening

        source = checkpoint or str(self._folder_of(stage_id))
        start = None if checkpoint else self.start
        return opening.open_folder(
            source, head or heads.of_checkpoint(source), self.seed, merge=merge, trained_head=trained_head, start=start
        )

    def open_tokenizer(self, stage_id: str | None = None, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
        """As `TokenizerOpener` promises."""
        from pipelines.models.tokenizer import open_tokenizer

        return open_tokenizer(checkpoint or str(self._folder_of(stage_id)))

    def _folder_of(self, stage_id: str | None) -> Path:
        if stage_id not in (None, self.model):
            raise ModelError(f"the folder holds the model of '{self.model}' and not that of '{stage_id}'")
        return self.folder


def context_for(recipe: Recipe, stage: Evaluate, out: Path, opener: Published, manifest: JSONObject) -> Context:
    """What a run gives to the stage, on one process and in the precision that the run had."""
    from pipelines.commands.trained_models import WarningLog
    from pipelines.runs.workspace import StageStore

    return Context(
        stage_id=stage.id,
        folder=out,
        fingerprint="0" * 32,
        seed=recipe.seed_of(stage),
        recipe=recipe,
        events=WarningLog(out / "events.jsonl"),
        world=World(),
        precision=manifest.get("launch", {}).get("mixed_precision", "no"),
        cache=StageStore().data,
        stage_folders={},
        open_model=opener.open_model,
        open_tokenizer=opener.open_tokenizer,
    )
