"""Whether a published folder is what was published: checksums, signature, foreign files, and scores stated anywhere.

Nothing in the folder is run, and torch is not imported. Checksums without a signature prove integrity and not origin:
whoever changes a file can write new checksums.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, FineryError, RecipeError
from pipelines.core.files import JSONObject, read_json
from pipelines.core.results import MARKER, BenchmarkScores
from pipelines.core.yaml_positions import read_yaml, read_yaml_text
from pipelines.evaluation import policy
from pipelines.publishing import signature
from pipelines.publishing.card import export_rows, rows_of
from pipelines.publishing.destinations.destination import SUMS, marker_in, sha256_of
from pipelines.publishing.exports.export import RECORD, score_rows
from pipelines.publishing.hub_metadata import EVAL_RESULTS, evaluation_results, on_the_hub
from pipelines.publishing.manifest import MANIFEST, mistake_in, older, stated_scores

if TYPE_CHECKING:
    from minisign import PublicKey

CARD, RECIPE = "README.md", "recipe.yaml"
WRITTEN = (CARD, MANIFEST, RECIPE)
"""What every publication holds beside its model."""
SCORES, EXPORTS = "## Scores", "## In other forms"
"""Headings of the card's tables of scores."""
HEADS = (("Benchmark", "Metric"), ("Form", "Weights"), ("Data", "Read by"))
"""How the tables of cards begin."""
EXPORT_COLUMNS = ("form", "size", "difference", "same", "benchmark", "metric", "published", "exported")
NUMBER = re.compile(r"\W*\d[\d.,]*\W*")
"""A cell that holds nothing but a figure."""
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
"""Of SHA256SUMS, as GNU coreutils write it."""
LEFT_BY_OTHERS = (".gitattributes", ".git/", ".cache/huggingface/")
"""What the Hub and its client put beside a publication, and nothing reads when a model is opened."""


def published(given: str) -> Path:
    """The folder that was named. Raises CommandError where it is no publication."""
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise CommandError(f"'{given}' is no folder; give one that was published, such as registry/NAME")
    if not (folder / MARKER).is_file() and not (folder / SUMS).is_file():
        raise CommandError(
            f"'{given}' is no publication of Finery: it has neither {MARKER} nor {SUMS}; give a folder that a publish "
            "stage or finery publish made"
        )
    return folder


def problems(folder: Path, key: PublicKey | None = None) -> list[str]:
    """One sentence for each thing that is not as it was published; with a key, its signature must be there."""
    found = [*_of_files(folder)]
    if key is not None and (mistake := signature.mistake(folder, key)) is not None:
        found.append(mistake)
    if all((folder / name).is_file() for name in WRITTEN):
        found += [*_of_recipe(folder), *_of_claims(folder)]
    return found


def _of_files(folder: Path) -> Iterator[str]:
    sums, mistake = _sums(folder)
    if mistake is not None:
        yield mistake
    if not (folder / MARKER).is_file():
        yield f"'{MARKER}' is missing: nothing was published completely without it"
        stated: Mapping[str, str] = {}
    else:
        marker = marker_in((folder / MARKER).read_bytes())
        if marker is None or marker.get("complete") is not True:
            yield f"'{MARKER}' was changed: it is no longer the marker of a complete publication"
        stated = {} if marker is None else marker["checksums"]
    for name in sorted({*sums, *stated}):
        path = folder / name
        if not _inside(name):
            yield f"'{name}' in the checksums lies outside of the folder"
            continue
        if name not in sums and name not in (SUMS, signature.SIGNATURE) and sums:
            yield f"'{name}' stands in {MARKER} and not in {SUMS}"
        elif stated and stated.get(name) != sums.get(name, stated.get(name)):
            yield f"'{name}' has one SHA-256 in {SUMS} and another in {MARKER}"
        digest = sums.get(name, stated.get(name))
        if not os.path.isfile(path):
            if name != SUMS:
                yield f"'{name}' is missing"
        elif sha256_of(path) != digest:
            yield f"'{name}' was changed: its SHA-256 is not the published one"
    for name in WRITTEN:
        if name not in {*sums, *stated} and not (folder / name).is_file():
            yield f"'{name}' is missing, which every publication holds"
    yield from _foreign(folder, {*sums, *stated, SUMS, MARKER})


def _sums(folder: Path) -> tuple[dict[str, str], str | None]:
    """(name -> digest as SHA256SUMS has it, what is wrong with that file)."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}, f"'{SUMS}' is missing"
    except (OSError, UnicodeDecodeError):
        return {}, f"'{SUMS}' cannot be read"
    matches = [LINE.fullmatch(line) for line in lines]
    broken = next((number for number, match in enumerate(matches, start=1) if match is None), None)
    sums = {match[2]: match[1] for match in matches if match is not None}
    return sums, None if broken is None else f"line {broken} of '{SUMS}' is no checksum"


def _inside(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts


def _foreign(folder: Path, known: set[str]) -> Iterator[str]:
    """What lies in the folder and was not published, and what is no plain file."""
    for place, folders, files in os.walk(folder):
        for name in sorted([*files, *(each for each in folders if os.path.islink(os.path.join(place, each)))]):
            relative = os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
            if relative.startswith(LEFT_BY_OTHERS):
                continue
            if relative not in known:
                code = ", and Python would import it" if name.endswith((".py", ".so", ".pyc", ".pth")) else ""
                yield f"'{relative}' lies in the folder and was not published{code}"


def _of_recipe(folder: Path) -> Iterator[str]:
    """What keeps the recipe from being read."""
    try:
        recipe, _ = read_yaml(folder / RECIPE)
    except RecipeError as error:
        yield f"'{RECIPE}' cannot be read: {error.mistakes[0].message}"
        return
    stages = recipe.get("stages") if isinstance(recipe, Mapping) else None
    if (
        not isinstance(stages, Sequence)
        or not all(isinstance(each, Mapping) and isinstance(each.get("id"), str) for each in stages)
        or not isinstance(recipe.get("model"), Mapping)
        or not isinstance(recipe.get("name"), str)
    ):
        yield f"'{RECIPE}' is not as Finery writes it: it has no name, no model, or stages without an id"


def _of_claims(folder: Path) -> Iterator[str]:
    """Where the card, its metadata, `.eval_results` and the records of exports say other scores than the manifest."""
    manifest = read_json(folder / MANIFEST)
    if older(folder):
        return
    if (mistake := mistake_in(manifest)) is not None:
        yield mistake
        return
    scores, exports = stated_scores(manifest), manifest.get("exports") or ()
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        yield f"'{CARD}' cannot be read as UTF-8 text"
        return
    tables = _tables(text)
    yield from _of_table(tables.pop(SCORES, []), scores)
    rows = [[str(row[key]) for key in EXPORT_COLUMNS] for row in export_rows(exports) if "note" not in row]
    if tables.pop(EXPORTS, []) != rows:
        yield f"'{CARD}' states other scores of its exports than '{MANIFEST}'"
    for row in (row for found in tables.values() for row in found if any(map(NUMBER.fullmatch, row))):
        yield f"'{CARD}' has a row of figures outside of its tables of scores: {' | '.join(row)}"
    yield from _of_metadata(text, scores)
    yield from _of_eval_results(folder, scores)
    yield from _of_exports(folder, exports)


def _tables(text: str) -> dict[str, list[list[str]]]:
    """Heading -> the rows of the tables below it, without their heads."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in re.split(r"\r\n|\r|\n", text):
        if line.startswith("#"):
            heading = line
        elif (row := line.strip()).startswith("|"):
            tables.setdefault(heading, []).append([cell.strip() for cell in row.strip("|").split("|")])
    return {heading: [row for row in rows if not _is_head(row)] for heading, rows in tables.items()}


def _is_head(row: Sequence[str]) -> bool:
    return tuple(row[:2]) in HEADS or not any(each.strip("-:") for each in row)


def _of_table(rows: Sequence[Sequence[str]], scores: Mapping[str, BenchmarkScores]) -> Iterator[str]:
    """Where the card's table of scores is not that of the manifest's."""
    shown: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in rows:
        shown.setdefault(tuple(row[:2]), []).append([*row[2:4], "", ""])
    for stated in rows_of(scores, ()):
        name, metric, value = stated["benchmark"], stated["metric"], stated["value"]
        cells, *more = shown.pop((name, metric), [["nothing", ""]])
        if more:
            yield f"'{CARD}' states {metric} of {name} {len(more) + 1} times"
        elif cells[0] != value:
            yield f"'{CARD}' states {cells[0]} for {metric} of {name}, '{MANIFEST}' {value}"
        elif cells[1] != stated["interval"]:
            yield f"'{CARD}' states the interval {cells[1]} for {metric} of {name}, '{MANIFEST}' {stated['interval']}"
    for key, found in shown.items():
        yield f"'{CARD}' states {found[0][0]} for {' of '.join(reversed(key))}, '{MANIFEST}' nothing"


def _of_metadata(card: str, scores: Mapping[str, BenchmarkScores]) -> Iterator[str]:
    """Where the card's `model-index` is not that of the manifest's scores."""
    names: dict[tuple[str, ...], list[str]] = {}  # several benchmarks may stand below one data set of the Hub
    wanted: dict[tuple[str, ...], list[float]] = {}
    for name, each in scores.items():
        for metric, exact in each.metrics.items() if name != policy.NAME else ():
            dataset, config = on_the_hub(name)
            key: tuple[str, ...] = (dataset or name, config or "", metric)
            names.setdefault(key, []).append(name)
            wanted.setdefault(key, []).extend([exact] if math.isfinite(exact) else [])
    found: dict[tuple[str, ...], list[float]] = {}
    try:
        for name, *place, metric, value in _metadata(card):
            key = *place, metric
            found.setdefault(key if name in names.get(key, ()) else (name, "", metric), []).append(value)
    except (FineryError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield f"the metadata of '{CARD}' cannot be read"
        return
    for key in dict.fromkeys([*wanted, *found]):
        stated, shown = (" and ".join(map(str, sorted(each.get(key, ())))) or "nothing" for each in (wanted, found))
        if stated != shown:
            name = names.get(key, key)[0]
            yield f"the metadata of '{CARD}' states {shown} for {key[-1]} of {name}, '{MANIFEST}' {stated}"


def _metadata(card: str) -> Iterator[tuple[Any, ...]]:
    """Each score of the card's `model-index`: (name, data set, its configuration, metric, value)."""
    _, _, rest = card.partition("---\n")
    header, _, _ = rest.partition("\n---")
    data, _ = read_yaml_text(header, CARD)
    for model in data.get("model-index") or ():
        for result in model["results"]:
            about = result["dataset"]
            place = str(about["name"]), str(about.get("type", "")), str(about.get("config", ""))
            for metric in result["metrics"]:
                yield *place, str(metric["name"]), float(metric["value"])


def _of_eval_results(folder: Path, scores: Mapping[str, BenchmarkScores]) -> Iterator[str]:
    """Where the files of `.eval_results` are not those that the manifest's scores make."""
    place = (folder / EVAL_RESULTS).parent
    wanted, _ = read_yaml_text(evaluation_results(scores, None) or "[]")
    found = []
    for file in sorted(place.rglob("*")) if place.is_dir() else ():
        try:
            entries, _ = read_yaml(file) if file.is_file() else ((), {})
            found += [_entry(each) for each in entries]
        except (FineryError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            yield f"'{file.relative_to(folder).as_posix()}' cannot be read"
            return
    expected = place.is_dir() or read_json(folder / MARKER).get("contents") not in (None, 2)  # which had no such file
    if expected and sorted(found) != sorted(map(_entry, wanted)):
        yield f"'{EVAL_RESULTS}' states other scores than '{MANIFEST}'"


def _entry(entry: Mapping[str, Any]) -> tuple[str, str, float, tuple[str, ...]]:
    """What is claimed on a data set of the Hub: the set, its task, the value, and the notes behind the first, which
    names the split."""
    notes = str(entry.get("notes", "")).split("; ")
    about = entry["dataset"]
    return str(about["id"]), str(about["task_id"]), float(entry["value"]), (notes[0].split(" on ")[0], *notes[1:])


def _of_exports(folder: Path, exports: Sequence[JSONObject]) -> Iterator[str]:
    """Where the folder of an export says other scores than the manifest."""
    records = {each["folder"]: each for each in exports}
    there = [path.parent.relative_to(folder).as_posix() for path in sorted(folder.rglob(RECORD))]
    for name in sorted({*records, *there}):
        record = read_json(folder / name / RECORD)
        stated = records.get(name, {"scores": None})
        try:
            rows = [row for found in _tables((folder / name / CARD).read_text("utf-8")).values() for row in found]
        except (OSError, UnicodeDecodeError):
            rows = []
        shown = [[cell.strip() for cell in row.strip("|").split("|")] for row in score_rows(stated["scores"] or ())]
        if record.get("scores") != stated["scores"] or rows != shown:
            yield f"the export in '{name}' states other scores than '{MANIFEST}'"
