"""`finery import openai DIR`: a team's exported files and job settings as recipes, with the data beside them.

DIR holds what OpenAI's API returned: jobs as JSON (a list of `fine_tuning.jobs.list`, single jobs, or an array), files
by their id or their name, and file objects as JSON where names are to be found by ids. Each job becomes one recipe. A
job that went on with the model of another one in DIR becomes one recipe with the stages of both, because OpenAI's
weights stay there. What has no equal here is told; a job that cannot be a recipe is left out with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.core.config import ConfigIssues, key_path
from pipelines.core.errors import EXIT_DONE, CommandError, RecipeError
from pipelines.core.files import write_text
from pipelines.core.graders import read_grader
from pipelines.core.load import loads
from pipelines.core.yaml_positions import read_yaml_text, write_yaml
from service.cli.generate import printable
from service.openai.recipes import (
    HUB,
    METHODS,
    SCORED,
    Base,
    ResolvedHyperparameters,
    dpo_stage,
    reinforcement_stage,
    resolve,
    scratch,
    supervised_stage,
    written,
)
from service.openai.training_files import examine

LARGEST_JSON = 64 << 20
MOST_STAGES = 10
"""Jobs one after the other in one recipe."""
UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
SEEDS = 2**31
LARGEST_NUMBER = 1e12
"""Beyond every time and every hyperparameter."""
DATA = "data"
"""The folder below the recipes that files are copied to."""


@dataclass
class OpenAIExport:
    """What a folder holds."""

    folder: Path
    jobs: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """File id -> file name."""
    wrong: list[str] = field(default_factory=list)
    """Files that cannot be read, each in one sentence."""


@dataclass
class Imported:
    """One recipe."""

    job: str
    file: str
    text: str
    notes: list[str]
    data: dict[str, Path]
    """Name below `data` -> the file it is copied from."""


class NotImportable(ValueError):
    """Why a job cannot be a recipe, in one sentence."""


def import_openai(
    folder: Path, model: str, judge: str | None, output: Path, dry: bool, force: bool, as_json: bool
) -> int:
    """Read, translate, tell, write. Returns the exit code. Raises CommandError."""
    exported = read_export(folder)
    if not exported.jobs:
        raise CommandError(
            f"{folder} holds no fine-tuning job; put the answer of fine_tuning.jobs.list() there as jobs.json"
        )
    base = base_named(model, output)
    local = {
        _beside(each, output): str(Path(each).resolve()) for each in (model, judge) if each and Path(each).is_dir()
    }
    judge = judge if judge is None else _beside(judge, output)
    recipes: list[Imported] = []
    left_out: list[tuple[str, str]] = []
    for job in exported.jobs:
        identifier = str(job.get("id", "a job without id"))
        try:
            recipes.append(recipe_of(job, exported, base, model, judge, output, {each.file for each in recipes}, local))
        except NotImportable as error:
            left_out.append((identifier, str(error)))
    if not dry:
        save(recipes, output, force)
    if as_json:
        summary = {
            "recipes": [{"job": each.job, "recipe": str(output / each.file), "notes": each.notes} for each in recipes],
            "left_out": [{"job": job, "reason": reason} for job, reason in left_out],
            "unreadable": exported.wrong,
            "written": not dry,
        }
        print(json.dumps(summary, ensure_ascii=False))
    else:
        tell(recipes, left_out, exported.wrong, output, dry)
    if not recipes:
        raise CommandError(f"none of the {len(exported.jobs)} jobs in {folder} can be a recipe; see above")
    return EXIT_DONE


# ---- what was exported -----------------------------------------------------------------------------------------------


def read_export(folder: Path) -> OpenAIExport:
    """Everything in the folder that OpenAI's API returns. Raises CommandError."""
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}; name the one with the exported files and jobs.json")
    exported = OpenAIExport(folder)
    for path in sorted(folder.rglob("*.json")):
        try:
            if path.stat().st_size > LARGEST_JSON:
                raise ValueError(f"is larger than {LARGEST_JSON >> 20} MiB")
            data = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            exported.wrong.append(f"{path.relative_to(folder)} is no JSON that can be read: {error}")
            continue
        for each in _objects(data):
            if each.get("object") == "file" and isinstance(each.get("id"), str):
                exported.names[each["id"]] = str(each.get("filename") or "")
            elif each.get("object") == "fine_tuning.job" or ("training_file" in each and "model" in each):
                exported.jobs.append(each)
    known: dict[str, dict[str, Any]] = {}
    for number, job in enumerate(exported.jobs):
        known.setdefault(str(job.get("id", number)), job)  # a page and the job itself may both be there
    exported.jobs = sorted(known.values(), key=_created)
    return exported


def _created(job: Mapping[str, Any]) -> float:
    """When a job was made, for their order; 0 where the export does not say."""
    created = job.get("created_at")
    return min(created, LARGEST_NUMBER) if isinstance(created, int | float) and created > 0 else 0


def _objects(data: object) -> Iterator[dict[str, Any]]:
    if isinstance(data, list):
        for each in data:
            yield from _objects(each)
    elif isinstance(data, dict):
        if isinstance(data.get("data"), list) and data.get("object", "list") == "list":
            yield from _objects(data["data"])
        else:
            yield data


def file_of(identifier: str, exported: OpenAIExport) -> Path:
    """The file of an id: by the id itself, or by its name. Raises NotImportable."""
    name = exported.names.get(identifier, "")
    every = [path for path in sorted(exported.folder.rglob("*")) if path.is_file() and path.suffix != ".json"]
    by_id = [path for path in every if path.name == identifier or path.stem == identifier]
    by_name = [path for path in every if name and path.name == name]
    if by_id or len(by_name) == 1:
        return (by_id or by_name)[0]
    if by_name:
        raise NotImportable(
            f"the file {identifier} is called '{name}', as {len(by_name)} files here are; call the right one "
            f"{identifier}.jsonl"
        )
    called = f" ('{name}')" if name else ""
    raise NotImportable(
        f"its file {identifier}{called} is not here; save files.content('{identifier}') as {identifier}.jsonl"
    )


# ---- from a job to a recipe ------------------------------------------------------------------------------------------


def base_named(model: str, output: Path) -> Base:
    """What is trained instead of OpenAI's models. Raises CommandError."""
    if model in scratch():
        return scratch()[model]
    if Path(model).is_dir():
        return Base({"checkpoint": _beside(model, output)}, Path(model).resolve().name)
    if model.startswith("scratch/") or not HUB.fullmatch(model):
        raise CommandError(f"--model {model} is no folder, no Hub name owner/name, and none of {', '.join(scratch())}")
    return Base({"checkpoint": model}, model.rpartition("/")[2])


def recipe_of(
    job: Mapping[str, Any],
    exported: OpenAIExport,
    base: Base,
    model: str,
    judge: str | None,
    output: Path,
    taken: set[str],
    local: Mapping[str, str],
) -> Imported:
    """The recipe of a job; `local` are folders of models as recipes name them, and where they are. Raises
    NotImportable."""
    if job.get("status") in ("failed", "cancelled"):
        raise NotImportable(f"it {'failed' if job['status'] == 'failed' else 'was cancelled'} there")
    notes: list[str] = []
    data: dict[str, Path] = {}
    chain = line_of(job, exported)
    first = str(chain[0].get("model"))
    notes.append(f"{first} stays with OpenAI; {model} learns in its place")
    if len(chain) > 1:
        steps = ", then ".join(str(each.get("id")) for each in chain)
        notes.append(f"it went on with the model of another job, so the recipe does both: {steps}")
    stages: list[dict[str, Any]] = []
    characters = 0
    for place, each in enumerate(chain):
        here = base if place == 0 else Base({"checkpoint": "the stage before"}, base.short)
        stage, size = stage_of(each, exported, base, here, judge, notes, data)
        characters += size
        stages.append(stage)
    if any(
        each.get("validation_file") and stage["stage"] == "supervised"
        for each, stage in zip(chain, stages, strict=True)
    ):
        stages.append(SCORED)
    suffix = str(job.get("suffix") or job.get("user_provided_suffix") or "")
    name = UNSAFE.sub("-", suffix or str(job.get("id", "job"))).strip("-")[:50] or "job"
    file = next(
        each
        for each in (f"{name}{end}.yaml" for end in ("", *(f"-{n}" for n in range(2, 10_000))))
        if each not in taken
    )
    seed = job.get("seed")
    seed = seed if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < SEEDS else 0
    for key, sentence in (
        ("integrations", "its integrations are left out; metrics are events, and report_to names trackers"),
        ("metadata", "its metadata is left out; a service keeps it with a job"),
    ):
        if job.get(key):
            notes.append(sentence)
    run = Path(file).stem
    origin = " ".join(f"{job.get('id')}, {first}".split())
    text = f"# From OpenAI's {origin}.\n" + written(run, seed, base, stages, f"registry/{run}", characters)
    try:
        loads(_with_sources(text, data, local), file, output.resolve())
    except RecipeError as error:
        raise NotImportable("its recipe is not valid: " + "; ".join(str(error).splitlines())) from None
    return Imported(str(job.get("id")), file, text, list(dict.fromkeys(notes)), data)


def _beside(name: str, output: Path) -> str:
    """A model as recipes in `output` name it: a folder relative to them, anything else as it is."""
    return os.path.relpath(Path(name).resolve(), output.resolve()) if Path(name).is_dir() else name


def _with_sources(text: str, data: Mapping[str, Path], local: Mapping[str, str]) -> str:
    """The recipe with everything where it is now: nothing is copied before it is known to be valid."""
    places = {**local, **{f"{DATA}/{name}": str(source.resolve()) for name, source in data.items()}}

    def placed(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: placed(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [placed(each) for each in value]
        return places.get(value, value) if isinstance(value, str) else value

    return write_yaml(placed(read_yaml_text(text)[0]))


def line_of(job: Mapping[str, Any], exported: OpenAIExport) -> list[Mapping[str, Any]]:
    """The jobs that led to this one, the oldest first. Raises NotImportable."""
    makers = {str(each["fine_tuned_model"]): each for each in exported.jobs if each.get("fine_tuned_model")}
    chain = [job]
    while (before := makers.get(str(chain[0].get("model")).split(":ckpt-step-")[0])) is not None:
        if before in chain or len(chain) == MOST_STAGES:
            raise NotImportable(f"it goes on from more than {MOST_STAGES} jobs, or from itself")
        chain.insert(0, before)
    model = str(chain[0].get("model"))
    if model.startswith("ft:"):
        raise NotImportable(f"it goes on with '{model}', and the job that made that is not here; export it too")
    return chain


def stage_of(
    job: Mapping[str, Any],
    exported: OpenAIExport,
    base: Base,
    here: Base,
    judge: str | None,
    notes: list[str],
    data: dict[str, Path],
) -> tuple[dict[str, Any], int]:
    """(the stage that does what a job did, the characters of its file). Raises NotImportable."""
    given = job.get("method")
    given = given if isinstance(given, Mapping) else {}
    method = str(given.get("type") or "supervised")
    if method not in METHODS:
        raise NotImportable(f"its method is '{method}', must be one of {', '.join(METHODS)}")
    how = METHODS[method]
    if here.from_scratch and not how.from_scratch:
        raise NotImportable(f"{method} improves a model that answers already; name one with --model")
    settings = given.get(method)
    settings = settings if isinstance(settings, Mapping) else {}
    train, rows, characters = data_of(job, "training_file", how.shape, exported, data)
    validation = None
    if job.get("validation_file") and method == "reinforcement":
        notes.append("its validation file is left out: the rewards of every step stand in metrics")
    elif job.get("validation_file"):
        validation = data_of(job, "validation_file", how.shape, exported, data)[0]
    numbers = numbers_of(settings.get("hyperparameters") or job.get("hyperparameters") or {}, base, rows, method, notes)
    if method == "dpo":
        return dpo_stage(train, validation, numbers), characters
    if method == "supervised":
        return supervised_stage(here, train, validation, numbers), characters
    if settings.get("response_format"):
        notes.append("response_format is left out: answers are plain text")
    return reinforcement_stage(train, reward_of(settings.get("grader"), judge, notes), numbers), characters


def data_of(
    job: Mapping[str, Any], key: str, shape: Any, exported: OpenAIExport, data: dict[str, Path]
) -> tuple[str, int, int]:
    """(the path in the recipe, rows, characters) of one of a job's files. Raises NotImportable."""
    identifier = str(job.get(key) or "")
    if not identifier:
        raise NotImportable(f"it names no {key}")
    path = file_of(identifier, exported)
    try:
        with open(path, "rb") as file:
            report = examine(file, shape)
    except OSError as error:
        raise NotImportable(f"its file {path.name} cannot be read: {error.strerror}") from None
    if report.mistakes:
        more = len(report.mistakes) - 1 + report.more
        others = f" (and {more} more)" if more else ""
        raise NotImportable(f"its file {path.name} cannot be learnt from: {report.mistakes[0]}{others}")
    name = f"{UNSAFE.sub('-', path.stem)}.jsonl"
    if data.get(name, path) != path:
        name = f"{UNSAFE.sub('-', identifier)}.jsonl"
    data[name] = path
    return f"{DATA}/{name}", report.rows, report.characters


def numbers_of(given: object, base: Base, rows: int, method: str, notes: list[str]) -> ResolvedHyperparameters:
    """A job's hyperparameters. Raises NotImportable."""
    if not isinstance(given, Mapping):
        raise NotImportable(f"its hyperparameters are {repr(given)[:40]}, must be an object")
    values: dict[str, Any] = {}
    for name, kind in (("n_epochs", int), ("batch_size", int), ("learning_rate_multiplier", float), ("beta", float)):
        value = given.get(name)
        if value in (None, "auto"):
            values[name] = None
        elif (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 < value < LARGEST_NUMBER
            and (kind is float or value == int(value))
        ):
            values[name] = kind(value)
        else:
            word = "a number" if kind is float else "a whole number"
            raise NotImportable(f"its {name} is {repr(value)[:40]}, must be {word} above 0 or auto")
    unused = sorted(key for key, value in given.items() if key not in values and value not in (None, "auto", "default"))
    if unused:
        notes.append(f"{', '.join(unused)} of its hyperparameters have no equal and are left out")
    numbers = resolve(
        base,
        rows,
        values["n_epochs"],
        values["batch_size"],
        values["learning_rate_multiplier"],
        values["beta"],
        METHODS[method],
    )
    if values["learning_rate_multiplier"] not in (None, 1.0):
        notes.append(
            f"learning_rate_multiplier {values['learning_rate_multiplier']:g} is of rates that OpenAI does not tell; "
            f"here it makes {numbers.learning_rate:.1e}"
        )
    return numbers


def reward_of(grader: object, judge: str | None, notes: list[str]) -> dict[str, Any]:
    """The reward behind a grader. Raises NotImportable."""
    try:
        read = read_grader(grader)
    except ConfigIssues as issues:
        place, message = issues.found[0]
        raise NotImportable(f"its {key_path(('grader', *place))} {message}") from None
    models = list(dict.fromkeys(read.models()))
    if any(name is None for name, _ in models):
        raise NotImportable("its grader takes the cosine of OpenAI's vectors; take another metric, such as rouge_l")
    if models and judge is None:
        raise NotImportable(
            f"its grader asks {models[0][0]}, which stays with OpenAI; name a model in its place with --judge"
        )
    reward: dict[str, Any] = {"name": "grader", "grader": {"type": read.type, **read.plain()}}
    if models:
        reward["models"] = [{"name": name, "checkpoint": judge} for name, _ in models]
        notes.append(f"{', '.join(str(name) for name, _ in models)} judges there, {judge} here")
    return reward


# ---- what is written and told ----------------------------------------------------------------------------------------


def save(recipes: Sequence[Imported], output: Path, force: bool) -> None:
    """Write recipes and data. Raises CommandError before anything is written where something is there."""
    there = [each.file for each in recipes if (output / each.file).exists()]
    if there and not force:
        raise CommandError(
            f"{output / there[0]} exists already; name another folder with --output, or overwrite with --force"
        )
    try:
        (output / DATA).mkdir(parents=True, exist_ok=True)
        for each in recipes:
            for name, source in each.data.items():
                partial = output / DATA / f".{name}.partial"
                shutil.copyfile(source, partial)
                partial.replace(output / DATA / name)
            write_text(output / each.file, each.text)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}; nothing of it is needed again") from None


def tell(
    recipes: Sequence[Imported], left_out: Sequence[tuple[str, str]], wrong: Sequence[str], output: Path, dry: bool
) -> None:
    """What became of each job."""
    for each in recipes:
        print(f"{printable(each.job)}  {'would be' if dry else 'is'} {output / each.file}")
        for note in each.notes:
            print(f"    {printable(note)}")
    for job, reason in left_out:
        print(printable(f"{job}  is left out: {reason}"))
    for sentence in wrong:
        print(printable(f"warning: {sentence}"))
    if recipes and not dry:
        print(f"\nNext:  finery run {output / recipes[0].file}")
