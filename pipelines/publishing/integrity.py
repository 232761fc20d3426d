"""Whether a published folder is what was published: checksums, signature, foreign files, and scores stated twice.

Nothing in the folder is run, and torch is not imported. Checksums without a signature prove integrity and not origin:
whoever changes a file can write new checksums.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, FineryError
from pipelines.core.files import JSONObject, read_json
from pipelines.core.results import BenchmarkScores
from pipelines.core.yaml_positions import read_yaml_text
from pipelines.publishing import signature
from pipelines.publishing.card import rows_of
from pipelines.publishing.destinations.destination import MARKER, SUMS, marker_in, sha256_of

if TYPE_CHECKING:
    from minisign import PublicKey

CARD, MANIFEST, RECIPE = "README.md", "manifest.json", "recipe.yaml"
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
    return found + [*_of_card(folder)]


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
        if not path.is_file():
            if name != SUMS:
                yield f"'{name}' is missing"
        elif sha256_of(path) != digest:
            yield f"'{name}' was changed: its SHA-256 is not the published one"
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


def stated_scores(manifest: JSONObject) -> dict[str, BenchmarkScores]:
    """The scores of a publication by benchmark, as its manifest states them; of an older publication none."""
    every: dict[str, BenchmarkScores] = {}
    model = str(_mapping(manifest.get("model")).get("stage", ""))
    for each in manifest.get("scores") or ():
        metrics = {name: math.nan if value is None else float(value) for name, value in each["metrics"].items()}
        intervals = {name: (float(low), float(high)) for name, (low, high) in each["intervals"].items()}
        details = {"percent": each.get("percent", []), "examples": each.get("examples")}
        every[each["benchmark"]] = BenchmarkScores(
            each["benchmark"], each["stage"], model, metrics, intervals, details=details
        )
    return every


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_card(folder: Path) -> Iterator[str]:
    """Where the card's table or its metadata say another score than the manifest."""
    try:
        scores = stated_scores(read_json(folder / MANIFEST))
        text = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # missing or changed, which was said
        return
    if not scores:
        return
    shown = {
        (cells[0], cells[1]): cells[2:4]
        for line in text.splitlines()
        if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) >= 4
    }
    metadata = _metadata(text)
    for row in rows_of(scores, ()):
        name, metric, value = row["benchmark"], row["metric"], row["value"]
        cells = shown.get((name, metric), ["nothing", ""])
        if cells[0] != value:
            yield f"'{CARD}' states {cells[0]} for {metric} of {name}, '{MANIFEST}' {value}"
        elif cells[1] != row["interval"]:
            yield f"'{CARD}' states the interval {cells[1]} for {metric} of {name}, '{MANIFEST}' {row['interval']}"
        exact, stated = scores[name].metrics[metric], metadata.get((name, metric))
        if stated is not None and math.isfinite(exact) and stated != exact:
            yield f"the metadata of '{CARD}' states {stated} for {metric} of {name}, '{MANIFEST}' {exact}"


def _metadata(card: str) -> dict[tuple[str, str], float]:
    """(benchmark, metric) -> value, of the card's `model-index`."""
    _, _, rest = card.partition("---\n")
    header, _, _ = rest.partition("\n---")
    try:
        data, _ = read_yaml_text(header, CARD)
        return {
            (str(result["dataset"]["name"]), str(metric["name"])): float(metric["value"])
            for model in data.get("model-index", ())
            for result in model["results"]
            for metric in result["metrics"]
        }
    except (FineryError, KeyError, TypeError, ValueError, AttributeError):
        return {}
