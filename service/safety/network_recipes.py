"""Recipes that came over the network: everything a local one must be, and nothing that reaches outside their project.

Such a recipe names uploaded files (`file:ID`), the project's models (`model:NAME`) and jobs (`job:NAME`), data sets
by the names that the server knows, and Hub names; never a path on the server, a URL, a tracker's account or a secret.
Import paths have no key in any recipe, and a repository's code runs only where an admin allowed it. Judges are asked at
public hosts only, unless the server's administrator says otherwise.

The check is pure: what references stand for, and which code is allowed, is looked up before and passed in. What the
name of a judge's host resolves to is looked up by the job itself when it asks (`pipelines.core.egress`): here only what
stands in the recipe is read.

`materialise` is pure too. It reads the text with its overrides, puts the paths of files and checkpoints in the place of
their references, makes `publish.to: NAME` the folder `published/NAME` of the job, and writes the one resolved recipe
that an attempt runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pipelines.core.config import ConfigIssue, ConfigIssues, Position, show
from pipelines.core.egress import is_literal, is_public, may_be_private, plain_host
from pipelines.core.errors import Mistake, RecipeError
from pipelines.core.load import checked, read_text
from pipelines.core.overrides import RecipeSource
from pipelines.core.recipe import Recipe
from pipelines.core.secrets import matches
from pipelines.core.study_cells import StudyRecipe, expand
from pipelines.core.study_matrix import axes_of
from pipelines.core.training_arguments import OFFERED_TRACKERS
from pipelines.core.yaml_positions import write_yaml
from service.safety import secrets
from service.safety.redaction import holds_secret
from service.safety.references import (
    MODEL_NAME,
    REFERENCE,
    TAKES,
    Kind,
    RecipeReference,
    key_of,
    references,
    replaced,
    strings,
)
from service.safety.remote_code import asks, unfit_code
from service.safety.secrets import SecretValue

KEY = "base_url"
"""The key of a recipe that holds the address of an endpoint."""
KEY_NAME = "api_key_env"
"""The key that holds the name of the secret that is sent there."""
INSIDE = (".localhost", ".local", ".internal", ".lan", ".home", ".intranet", ".corp")
"""How names end that no public server has."""


def unfit_endpoints(data: object, private: bool = False) -> Iterable[ConfigIssue]:
    """What is wrong with the addresses of endpoints in plain data, with their places."""
    for place, text in strings(data):
        if key_of(place) == KEY and (problem := unfit_endpoint(text, private)) is not None:
            yield place, problem


def unfit_endpoint(url: str, private: bool = False) -> str | None:
    """Why a job may not ask there; None if it may. `private` allows networks that the server stands in."""
    try:
        parts = urlsplit(url)
        host = plain_host(parts.hostname or "")
        _ = parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        return f"is {show(url)}, must be an address such as https://api.example.com/v1"
    if private:
        refused = is_literal(host) and not may_be_private(host)
    elif is_literal(host):
        refused = not is_public(host)
    else:
        refused = "." not in host or host.endswith(INSIDE)
    if refused:
        return (
            f"is {show(url)}, which lies in a private network or is no usual way to write an address; name a public "
            "one, or ask the server's administrator"
        )
    return None


def unfit_keys(
    data: object, named: Collection[str], secret_of: Callable[[str], SecretValue | None]
) -> Iterable[ConfigIssue]:
    """What is wrong with the keys that judges are sent: secrets that the job does not name, or that were kept for
    other hosts."""
    for place, text in strings(data):
        if key_of(place) == KEY_NAME and text not in named:
            yield (
                place,
                f"is {show(text)}, which the job does not name under 'secrets'; submit it with \"secrets\": "
                f'["{text}"], or `finery submit --secret {text}`',
            )
    for place, url, name in _judges(data):
        secret = secret_of(name) if name in named else None
        if secret is not None and secret.hosts is not None and not matches(secret.hosts, url):
            yield (
                (*place, KEY),
                f"is {show(url)}, where the secret {name} may not be sent; it was kept for "
                f"{', '.join(secret.hosts) or 'no host'}",
            )


def _judges(value: object, place: Position = ()) -> Iterable[tuple[Position, str, str]]:
    """Place, address and name of the key of every block that has both."""
    if isinstance(value, Mapping):
        url, name = value.get(KEY), value.get(KEY_NAME)
        if isinstance(url, str) and isinstance(name, str):
            yield place, url, name
        for key, entry in value.items():
            yield from _judges(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from _judges(entry, (*place, position))


FILE = "recipe.yaml"
NOWHERE = Path("/nonexistent")
"""The folder that relative paths are looked for in: there is none, so none is found."""
MOST_CHARACTERS = 1 << 16
"""Of a recipe that comes over the network; reading YAML costs time that others wait for."""
MOST_VALUES = 10_000
"""Lines and values of a recipe; one of some hundred is long."""
MOST_OVERRIDES = 200
MOST_DEPTH = 40
"""Brackets within each other, and parts of an override's path."""
BRACKET = re.compile(r"[\[\]{}]")
MOST_MERGES = 20
MOST_CELLS = 256
MOST_WORKERS = 16
PLACES = ("path", "checkpoint", "pretrained", "chat_template", "vectors", "train", "validation", "test")
"""Keys whose texts may name something on a disk. A contract test holds them against the types of every block."""
FREE = (
    "label", "labels", "columns", "init_text", "blank", "answer_pattern", "tokens", "tags", "question", "options",
    "answer", "answers", "context", "source", "target", "text", "prompt", "completion", "instruction", "output",
    "input", "comparison", "critique", "revision", "words", "pattern", "reference", "content", "passing_labels",
    "calculate_output",
)  # fmt: skip
"""Keys whose texts are the user's own words, or names of columns."""
LOCAL = re.compile(r"^(/|~|\.{1,2}(/|$)|[A-Za-z]:\\|\\)|(^|/)\.\.(/|$)|^file://|\x00")
URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
DATA_FILE = re.compile(r"\.(jsonl|json|csv|tsv|parquet|txt|jinja2?|j2|gz|zip|arrow)$|[*?\[\]]", re.IGNORECASE)
TRACKERS = ("none", "tensorboard", *OFFERED_TRACKERS)
"""Trackers whose accounts and addresses are secrets of the project, or which have none."""
UPLOAD = "upload the file and write file:ID"
MODELS = "write a Hub name, model:NAME or job:NAME"


@dataclass(frozen=True)
class Known:
    """What references of a recipe stand for."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Id of every ready file of the project that the recipe names -> where it lies."""
    checkpoints: Mapping[str, Path | None] = field(default_factory=dict)
    """`job:NAME` or `model:NAME` -> the model's folder, or None while the job has not left one."""
    code: frozenset[str] = frozenset()
    """`owner/name@COMMIT` of every repository whose code the project may run."""
    private_endpoints: bool = False
    """Whether judges may be asked in networks that the server stands in."""
    missing_trackers: frozenset[str] = frozenset()
    """Those of TRACKERS whose packages are not installed where jobs run, as far as that is known."""


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe that may run on the server."""

    source: RecipeSource
    """As it was written, its overrides applied."""
    recipe: Recipe
    study: StudyRecipe | None = None
    """The cells, when it has a matrix."""


def check(
    text: str, overrides: Sequence[str] = (), known: Known = Known(), processes: int | None = None
) -> CheckedRecipe:
    """The checked recipe, or RecipeError with every mistake. `processes` is how many the job's resources allow."""
    source = read_network(text, overrides)
    issues = [
        *_unfit_references(source.data, known),
        *_unsafe(source.data, processes),
        *unfit_code(source.data, known.code),
        *unfit_endpoints(source.data, known.private_endpoints),
        *_without_package(source.data, known.missing_trackers),
    ]
    mine = source.error(issues).mistakes if issues else ()
    stand_ins: dict[Position, Any] = {
        place: OFFERED_TRACKERS[0] if key_of(place) == "report_to" else "refused"
        for place, _ in issues
        if isinstance(_at(source.data, place), str)
    }
    for place, name in _publications(source.data):  # a model's name, and no folder below the one the server works in
        stand_ins[place] = str(NOWHERE / PUBLISHED / ("refused" if place in stand_ins else name))
    for reference in references(source.data):
        if reference.place not in stand_ins:
            stand_ins[reference.place] = _stand_in(str(reference), known)
    try:
        complete = _complete(replace(source, data=replaced(source.data, stand_ins)))
    except RecipeError as error:
        others = [each for each in error.mistakes if not _covered(each, mine)]
        raise RecipeError(_in_order([*mine, *(_scrubbed(each, known) for each in others)])) from None
    if mine:
        raise RecipeError(mine)
    return replace(complete, source=source)


def read_network(text: str, overrides: Sequence[str] = ()) -> RecipeSource:
    """The recipe as plain data, its overrides applied. Raises RecipeError."""
    problem = too_costly(text, overrides)
    if problem is not None:
        raise RecipeError([Mistake("", problem, FILE)])
    try:
        return read_text(text, FILE, NOWHERE, overrides, local=False)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        # YAML allows documents that no recipe is, such as mappings as keys, and overrides of impossible places
        raise RecipeError([Mistake("", f"cannot be read as a recipe: {type(error).__name__}", FILE)]) from None


def too_costly(recipe: str | Mapping[str, object], overrides: Sequence[str] = ()) -> str | None:
    """Why a recipe, text or plain data, is not even parsed: some kilobytes can keep a parser busy for a minute."""
    if len(overrides) > MOST_OVERRIDES:
        return f"has {len(overrides)} overrides; at most {MOST_OVERRIDES} are allowed"
    size = sum(map(len, overrides)) + (len(recipe) if isinstance(recipe, str) else 0)
    if size > MOST_CHARACTERS:
        return f"has {size} characters, its overrides included; at most {MOST_CHARACTERS} are allowed"
    for override in overrides:
        path = override.partition("=")[0]
        if path.count(".") + path.count("[") >= MOST_DEPTH:
            return f"has an override whose path has more than {MOST_DEPTH} parts"
    written = (recipe, *overrides) if isinstance(recipe, str) else tuple(overrides)
    if sum(text.count(mark) for text in written for mark in ",\n[{") > MOST_VALUES:
        return f"has more than {MOST_VALUES} lines and values: not a recipe"
    problem = next((reason for each in written if (reason := _costly_text(each)) is not None), None)
    return problem if isinstance(recipe, str) or problem is not None else _costly_data(recipe, MOST_CHARACTERS - size)


def _costly_text(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a character, must be Unicode text"
    depth = deepest = 0
    for bracket in BRACKET.finditer(text):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        return f"is nested more than {MOST_DEPTH} brackets deep: not a recipe"
    if text.count("<<") > MOST_MERGES:
        return f"merges mappings more than {MOST_MERGES} times; write the keys out"
    return None


def _costly_data(data: object, room: int) -> str | None:
    """The same for plain data, looked at level by level: it may be deeper than the stack, and is given up where it
    is too much."""
    level, count, size = [data], 0, 0
    for _ in range(MOST_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                count += len(value)
                size += sum(len(str(key)) for key in value) if count <= MOST_VALUES else 0
                below += value.values() if count <= MOST_VALUES else ()
            elif isinstance(value, list | tuple):
                count += len(value)
                below += value if count <= MOST_VALUES else ()
            elif isinstance(value, str):
                size += len(value)
            if count > MOST_VALUES:
                return f"has more than {MOST_VALUES} values: not a recipe"
            if size > room:
                return (
                    f"has more than {MOST_CHARACTERS} characters, its overrides included; at most {MOST_CHARACTERS} "
                    "are allowed"
                )
        if not below:
            return None
        level = below
    return f"is nested more than {MOST_DEPTH} levels deep: not a recipe"


def _complete(source: RecipeSource) -> CheckedRecipe:
    if source.data.get("matrix") is None:
        return CheckedRecipe(source, checked(source))
    study = expand(_few_cells(source))
    return CheckedRecipe(source, study.recipe, study)


def _few_cells(source: RecipeSource) -> RecipeSource:
    matrix = source.data["matrix"]
    try:
        cells = 1
        for axis in axes_of(matrix) if isinstance(matrix, Mapping) else ():
            cells *= len(axis.entries)
    except ConfigIssues:
        return source  # `expand` tells them with their places
    if cells > MOST_CELLS:
        raise source.error(
            [(("matrix",), f"has {cells:,} cells, a server takes at most {MOST_CELLS}; leave some values out")]
        )
    return source


def _unfit_references(data: object, known: Known) -> Iterable[ConfigIssue]:
    for reference in references(data):
        if reference.kind == "file" and reference.name not in known.files:
            yield (
                reference.place,
                f"'{reference}' is no complete file of this project; list them with GET /api/v1/files",
            )
        elif reference.kind != "file" and str(reference) not in known.checkpoints:
            what = "job that succeeded or may still do so" if reference.kind == "job" else "model"
            yield (
                reference.place,
                f"'{reference}' is no {what} of this project; list them with GET /api/v1/{reference.kind}s",
            )


def _unsafe(data: object, processes: int | None) -> Iterable[ConfigIssue]:
    for place, text in strings(data):
        problem = _unsafe_text(key_of(place), place, text)
        if problem is not None:
            yield place, problem
    for place, number in _numbers(data):
        limit = {"num_processes": processes, "dataloader_num_workers": MOST_WORKERS}.get(key_of(place))
        if limit is not None and number > limit:
            more = "; ask for more resources" if key_of(place) == "num_processes" else ""
            yield place, f"is {number}, this job may have at most {limit}{more}"


def _without_package(data: object, missing: frozenset[str]) -> Iterable[ConfigIssue]:
    for place, text in strings(data):
        if key_of(place) == "report_to" and text in missing:
            yield (
                place,
                f"is {show(text)}, a tracker whose package is not installed where jobs run; ask the server's operator "
                "for it, or leave it out",
            )


def _unsafe_text(key: str, place: Position, text: str) -> str | None:
    if holds_secret(text):
        return (
            "holds what looks like a secret; recipes are stored and shown, so give secrets to the server by name "
            "instead"
        )
    if key == "api_key_env" and not secrets.is_name(text):
        return f"is no secret of the project: {secrets.unfit_name(text)}"
    if place == ("launch", "config"):
        return f"is {show(text)}, a file that the server does not have; write profile, num_processes, mixed_precision"
    if key == "to" and _publishes(place):
        if MODEL_NAME.fullmatch(text) is None:
            return (
                f"is {show(text)}, but on a server it is the name of a model of the project, such as my-model "
                "(letters, digits, '_', '.', ':' and '-')"
            )
    elif key == "report_to" and text not in TRACKERS:
        return (
            f"is {show(text)}, a tracker that would use the server's own account; those that take secrets of the "
            f"project: {', '.join(OFFERED_TRACKERS)}"
        )
    elif key in PLACES:
        return _unsafe_place(key, text)
    elif key not in FREE and LOCAL.search(text):
        return f"is {show(text)}, which looks like a path on the server; recipes that are submitted cannot name any"
    return None


def _unsafe_place(key: str, text: str) -> str | None:
    parts = REFERENCE.fullmatch(text)
    if parts is not None:
        kind = cast("Kind", parts.group(1))
        if key not in TAKES[kind]:
            return f"is {show(text)}, but {kind}: references stand at {', '.join(TAKES[kind])} only"
        return None
    instead = MODELS if key in TAKES["model"] else UPLOAD
    if LOCAL.search(text):
        return f"is {show(text)}, which names a place on the server; {instead}"
    if URL.match(text):
        return f"is {show(text)}, but recipes name no URLs; {instead}"
    if key not in ("checkpoint", "pretrained") and DATA_FILE.search(text):
        return f"is {show(text)}, a file that the server does not have; {UPLOAD}"
    return None


def _publishes(place: Position) -> bool:
    """Whether a key `to` is that of a stage, or of an override path in a matrix."""
    return place[0] == "stages" or (
        place[0] == "matrix" and any(isinstance(part, str) and part.endswith(".to") for part in place)
    )


def _numbers(value: object, place: Position = ()) -> Iterable[tuple[Position, int]]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield place, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _numbers(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from _numbers(entry, (*place, position))


def _stand_in(reference: str, known: Known) -> str:
    """What the rest of the check reads in place of a reference."""
    kind, _, name = reference.partition(":")
    folder = known.files.get(name) if kind == "file" else known.checkpoints.get(reference)
    return str(folder) if folder is not None else f"pending/{re.sub(r'[^A-Za-z0-9_-]', '-', name)}"


def _at(data: Any, place: Position) -> Any:
    for key in place:
        data = data[key]
    return data


def _covered(mistake: Mistake, mine: Sequence[Mistake]) -> bool:
    """Whether a mistake is about something that was refused already."""
    return any(mistake.key == each.key or mistake.key.startswith((f"{each.key}.", f"{each.key}[")) for each in mine)


def _scrubbed(mistake: Mistake, known: Known) -> Mistake:
    """The mistake without the places of files on the server."""
    message = mistake.message
    for identifier, path in known.files.items():
        message = message.replace(str(path), f"file:{identifier}")
    for reference, folder in known.checkpoints.items():
        message = message if folder is None else message.replace(str(folder), reference)
    message = re.sub(rf"[;,]? \(?looked for {NOWHERE}[^ )]*( \(there is no folder {NOWHERE}[^)]*\))?\)?", "", message)
    return replace(mistake, message=message.replace(f"{NOWHERE}/", "").replace(str(NOWHERE), "the server"))


def _in_order(mistakes: Sequence[Mistake]) -> list[Mistake]:
    return sorted(mistakes, key=lambda each: each.line or 0)


PUBLISHED = "published"
"""The folder below the job's that models are published to before they join the project's."""


@dataclass(frozen=True)
class Materialised:
    """What an attempt runs."""

    recipe: str
    """The recipe's text, overrides included."""
    publications: Mapping[str, str]
    """Folder of each publication, relative to the job's -> name of the model."""


@dataclass(frozen=True)
class Needs:
    """What a recipe refers to; it must be looked up before the recipe is materialised."""

    files: tuple[str, ...] = ()
    """Ids of uploaded files."""
    jobs: tuple[str, ...] = ()
    """Names or ids of jobs."""
    models: tuple[str, ...] = ()
    """Names of models."""
    publishes: tuple[str, ...] = ()
    """Names that models are published under."""
    code: bool = False
    """Whether it would run code of its checkpoint's repository."""


def needs(text: str, overrides: Sequence[str] = ()) -> Needs:
    """What a recipe refers to. Raises RecipeError when it cannot be read."""
    return needs_of(read_network(text, overrides).data)


def needs_of(data: object) -> Needs:
    """The same for a recipe that was read."""
    every_reference = references(data)
    return Needs(
        _named(every_reference, "file"),
        _named(every_reference, "job"),
        _named(every_reference, "model"),
        tuple(dict.fromkeys(name for _, name in _publications(data))),
        asks(data),
    )


def materialise(
    text: str,
    overrides: Sequence[str] = (),
    *,
    files: Mapping[str, Path],
    checkpoints: Mapping[str, Path],
    published: str = PUBLISHED,
) -> Materialised:
    """The recipe for the attempt. `files` are by id, `checkpoints` by `job:NAME` or `model:NAME`.

    Paths in it are absolute but for `publish.to`, which is relative to the working folder of the attempt.
    Raises RecipeError when a reference is not among `files` and `checkpoints`.
    """
    source = read_network(text, overrides)
    values: dict[Position, Any] = {}
    lost = []
    for reference in references(source.data):
        path = files.get(reference.name) if reference.kind == "file" else checkpoints.get(str(reference))
        if path is None:
            lost.append((reference.place, f"'{reference}' is gone; submit the job again with one that is there"))
        else:
            values[reference.place] = str(path)
    if lost:
        raise source.error(lost)
    publications = {}
    for place, name in _publications(source.data):
        if MODEL_NAME.fullmatch(name) is None:
            raise source.error([(place, f"is '{name}', must be the name of a model")])
        values[place] = f"{published}/{name}"
        publications[values[place]] = name
    return Materialised(write_yaml(replaced(source.data, values)), publications)


def _named(references: Sequence[RecipeReference], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in references if each.kind == kind))


def _publications(data: object) -> list[tuple[Position, str]]:
    """Every text that says where to publish: of a stage, or of an override path in a matrix."""
    targets = []
    for place, text in strings(data):
        if key_of(place) != "to":
            continue
        in_stage = len(place) == 3 and place[0] == "stages"
        in_matrix = place[0] == "matrix" and any(isinstance(part, str) and part.endswith(".to") for part in place)
        whole_stage = place[0] == "matrix" and place[-1] == "to"
        if in_stage or in_matrix or whole_stage:
            targets.append((place, text))
    return targets


__all__ = ["Materialised", "Needs", "RecipeError", "materialise", "needs", "needs_of"]
