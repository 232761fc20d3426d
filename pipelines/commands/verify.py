"""`finery verify`: whether a published folder is what was published, and scores what it says.

Checksums, signature and card are looked at first, without running anything (`pipelines.publishing.integrity`). Then
the evaluate stages of the folder's own recipe are done again with its weights, where their data is at hand with the
same SHA-256. Code from the folder runs only with `trust_remote_code`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, FineryError, RecipeError
from pipelines.core.files import JSONObject, read_json
from pipelines.core.interfaces import Context, Head, World
from pipelines.core.load import load
from pipelines.core.recipe import Model, Recipe
from pipelines.core.results import BenchmarkScores, read_scores
from pipelines.core.yaml_positions import read_yaml, write_yaml
from pipelines.publishing import sources
from pipelines.publishing.agreement import Agreement, compare, differences_from
from pipelines.publishing.integrity import MANIFEST, RECIPE, problems, published, stated_scores
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
        try:
            rescored = score_again(folder, data, request.trust_remote_code)
        except (KeyError, TypeError, AttributeError, ValueError):  # somebody else wrote it, checksums and all
            found.append(f"'{MANIFEST}' is not as Finery writes it, so the scores could not be measured again")
            rescored = Rescored()
    found += [each.sentence() for each in rescored.agreements if not each.holds]
    return {
        "folder": str(folder),
        "verified": not found,
        "signed": key is not None and not found,
        "files": len(read_json(folder / "publication.json").get("checksums", {})),
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


def score_again(folder: Path, data: Path | None, trust: bool) -> Rescored:
    """Do the evaluations again that the folder's scores come from."""
    manifest = read_json(folder / MANIFEST)
    stated = stated_scores(manifest)
    if "scores" not in manifest or "sources" not in manifest:
        return Rescored(notes=[f"the scores were not measured again: '{folder}' {OLDER}"])
    if not stated:
        return Rescored(notes=["no scores are stated, so none were measured again"])
    found = sources.find(manifest["sources"], data)
    if found.missing:
        return Rescored(notes=["the scores were not measured again", *found.missing])
    if not trust and needs_its_code(folder):
        return Rescored(
            notes=[
                "the scores were not measured again: the model opens only with Python code of its folder; read it, "
                "then give --trust-remote-code"
            ]
        )
    from pipelines.runs import hardware

    differences = differences_from(manifest, hardware.describe(), installed())
    rescored = Rescored(differences=differences)
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        names = found.place(manifest["sources"], Path(place))
        try:
            recipe = recipe_in(folder, Path(place), names, str(manifest["model"]["publish"]))
        except RecipeError as error:
            first = error.mistakes[0]
            rescored.notes.append(f"the scores were not measured again: its recipe, {first.key}: {first.message}")
            return rescored
        opener = Published(folder, str(manifest["model"]["stage"]), recipe.seed, trust)
        for stage_id in dict.fromkeys(each.stage for each in stated.values()):
            mine = {name: each for name, each in stated.items() if each.stage == stage_id}
            try:
                measured = measure(Path(place), recipe, manifest, stage_id, mine, opener)
            except FineryError as error:
                rescored.notes.append(f"what '{stage_id}' measured was not measured again: {error}")
                continue
            for name, each in mine.items():
                again = measured[name].metrics if name in measured else {}
                rescored.agreements += compare(each, again, exact=not differences)
    return rescored


def needs_its_code(folder: Path) -> bool:
    """Whether the model is of a type that neither transformers nor Finery has, so that opening it runs its code."""
    from transformers import CONFIG_MAPPING

    from pipelines.architectures.registration import register

    register()
    place = folder / "base" if (folder / "adapter_config.json").is_file() else folder
    return read_json(place / "config.json").get("model_type") not in CONFIG_MAPPING


def recipe_in(folder: Path, place: Path, names: Mapping[str, str], publish: str) -> Recipe:
    """The publication's recipe up to its publish stage, with its files where `names` says. Raises RecipeError."""
    data, _ = read_yaml(folder / RECIPE)
    data = sources.renamed(data, names)
    ids = [stage["id"] for stage in data["stages"]]
    data["stages"] = data["stages"][: ids.index(publish) if publish in ids else len(ids)]
    path = place / RECIPE
    path.write_text(write_yaml(data), encoding="utf-8")
    return load(path)


def measure(
    place: Path,
    recipe: Recipe,
    manifest: JSONObject,
    stage_id: str,
    stated: Mapping[str, BenchmarkScores],
    opener: Published,
) -> dict[str, BenchmarkScores]:
    """The scores of one evaluate stage, by benchmark, measured with the model of `opener`. Raises FineryError."""
    model = opener.model
    stage: Any = recipe.stage(stage_id)
    before = next((each.get("data") or {} for each in manifest["stages"] if each["id"] == stage_id), {})
    now = stage.content(recipe)
    changed = [name for name, digest in before.items() if now.get(name) != digest]
    if changed:
        raise CommandError(f"its data here is not the data that was read ({', '.join(changed)})")
    stage = only_of(stage, recipe, model, [*stated])
    at = [each.id for each in recipe.stages].index(stage_id)
    recipe = recipe.model_copy(update={"stages": (*recipe.stages[:at], stage)})
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
            raise CommandError(f"the folder holds the model of '{self.model}' and not that of '{stage_id}'")
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
