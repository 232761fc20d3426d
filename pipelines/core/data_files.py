"""Data files: which files a path of a recipe stands for, split by split. What reads them stands in `pipelines.data`.

A path is an absolute path to a file, a folder of files, or a pattern with `*`, `?` or `[`. A file, or the files of a
pattern, are one split, `train`. A folder is read as the Hub reads a data set's folder: the `configs` in the README's
YAML header decide where they exist. Otherwise a file belongs to the split in its name (`train.csv`,
`train-00000-of-00002.parquet`) or in its folder's name (`train/0.parquet`), a folder of such files is a configuration,
and files that name no split are all `train`.

The folders of FINERY_DATA, separated as in PATH, hold local copies of Hub data sets; the first that has a set answers.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipelines.core.errors import DataError
from pipelines.core.registry import nearest

ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
"""What the names of data files end with; `pipelines.data.tables` has a reader for each."""
EMBEDDED = "builtin/"
"""What the names of embedded data sets begin with."""
Splits = dict[str, tuple[Path, ...]]

SHARD = re.compile(r"^(?P<split>\w+?)-\d{5}-of-\d{5}$")
WORD = re.compile(r"(?:^|[-_. ])(train|training|validation|valid|val|dev|test|testing)(?:[-_. ]|$)")
SAME = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}
DEFAULT = "default"


def configurations(folder: Path) -> dict[str, Splits]:
    """The folder's configurations, the one to take without a name first. Empty when it holds no data."""
    declared = _declared(folder)
    if declared:
        return declared
    splits_of: dict[str, Splits] = {}
    if own := _splits(folder, _data_files(folder / "data")):
        splits_of[DEFAULT] = own
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        if inner.is_dir() and inner.name != "data" and not _word(inner.name) and (splits := _splits(inner)):
            splits_of[inner.name] = splits
    return splits_of


def choose(folder: Path, name: str | None, described: str) -> Splits:
    """The files of each split in the configuration `name`. Raises DataError."""
    by_name = configurations(folder)
    if not by_name:
        raise DataError(f"{described} holds no data files; known file endings: {', '.join(ENDINGS)}")
    if name is not None:
        if name not in by_name:
            raise DataError(
                f"{described} has no configuration '{name}'.{nearest(name, by_name)} "
                f"Configurations found: {', '.join(by_name)}"
            )
        return by_name[name]
    first = next(iter(by_name))
    if len(by_name) > 1 and first != DEFAULT and not _declared_default(folder):
        raise DataError(f"{described} has several configurations; choose one with 'name': {', '.join(by_name)}")
    return by_name[first]


def _data_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())


def _split_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    inner = (each for each in sorted(folder.iterdir()) if each.is_dir() and _word(each.name))
    return [file for each in inner for file in _data_files(each)]


def _word(name: str) -> str | None:
    """The split that a file's or a folder's name speaks of."""
    word = WORD.search(name.lower())
    return SAME.get(word[1], word[1]) if word else None


def _splits(folder: Path, others: Iterable[Path] = ()) -> Splits:
    """The splits of a folder's own files, of `others`, and of its folders that are named as a split."""
    by_split: dict[str, list[Path]] = {}
    inside = _split_folders(folder)
    split_folders = {file.parent for file in inside}
    for file in (*_data_files(folder), *others, *inside):
        shard = SHARD.match(file.stem)
        around = _word(file.parent.name) if file.parent in split_folders else None
        split = shard["split"] if shard else _word(file.stem) or around or "train"
        by_split.setdefault(split, []).append(file)
    order = [*(split for split in ("train", "validation", "test") if split in by_split), *by_split]
    return {split: tuple(by_split[split]) for split in dict.fromkeys(order)}


def header(folder: Path) -> Mapping[str, Any]:
    """The YAML header of the folder's README, empty when there is none."""
    readme = folder / "README.md"
    if not readme.is_file():
        return {}
    lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---" or "---" not in (line.strip() for line in lines[1:]):
        return {}
    end = next(number for number, line in enumerate(lines[1:], start=1) if line.strip() == "---")
    return _read_header("\n".join(lines[1:end]))


@lru_cache(maxsize=64)
def _read_header(text: str) -> Mapping[str, Any]:
    """A header as it was written: a run asks for the same one at every look at its data."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        header = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return {}
    return header if isinstance(header, Mapping) else {}


def _entries(folder: Path) -> list[Mapping[str, Any]]:
    configs = header(folder).get("configs")
    return [each for each in configs if isinstance(each, Mapping)] if isinstance(configs, list) else []


def _declared_default(folder: Path) -> bool:
    return any(entry.get("default") for entry in _entries(folder))


def _declared(folder: Path) -> dict[str, Splits]:
    configs: dict[str, Splits] = {}
    entries = _entries(folder)
    for entry in sorted(entries, key=lambda each: (not each.get("default"), each.get("config_name") != DEFAULT)):
        splits: Splits = {}
        for split, patterns in _patterns(entry.get("data_files")):
            paths = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
            if inside := tuple(file for file in paths if file.suffix.lower() in ENDINGS):
                splits[split] = inside
        if splits:
            configs[str(entry.get("config_name", DEFAULT))] = splits
    return configs


def _patterns(data_files: object) -> Iterator[tuple[str, list[str]]]:
    """The patterns of each split in `data_files`: a pattern, a list of them, or a list of {split, path}."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    if entries and all(isinstance(entry, str) for entry in entries):
        entries = [{"split": "train", "path": entries}]
    for entry in entries:
        if isinstance(entry, Mapping) and "path" in entry:
            given = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
            paths = [str(path).removeprefix("./") for path in given]
            yield str(entry.get("split", "train")), [path for path in paths if path and not _leaves(path)]


def _leaves(pattern: str) -> bool:
    """Whether a pattern points out of the folder."""
    return pattern.startswith("/") or ".." in Path(pattern).parts


def splits_at(path: str, name: str | None) -> Splits | None:
    """The files of each split at the absolute path or pattern `path`; None for any other name. Raises DataError."""
    if not os.path.isabs(path):
        return None
    place = Path(path)
    try:
        if place.is_dir():
            return choose(place, name, f"folder {place}")
        files = [place] if place.is_file() else matches(path)
    except OSError as error:
        raise DataError(f"{path} could not be read: {error.strerror}") from None
    if not files:
        raise DataError(f"{path} does not exist")
    if name is not None:
        raise DataError(f"{path} is a file and has no configuration '{name}'; leave 'name' out")
    return {"train": tuple(files)}


def split_of_role(role: str, splits: Collection[str]) -> str | None:
    """The split that a task reads as `train`, `validation` or `test` where it names none: the one of that name, or the
    only one there is."""
    return role if role in splits else next(iter(splits)) if len(splits) == 1 else None


def is_pattern(path: str) -> bool:
    """Whether `path` has wildcards."""
    return glob.has_magic(path)


def matches(path: str) -> list[Path]:
    """The data files that a pattern names, sorted; `**` also stands for folders."""
    files = (Path(file) for file in sorted(glob.glob(path, recursive=True)))
    return [file for file in files if file.suffix.lower() in ENDINGS and file.is_file()]


MIRRORED = re.compile(r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")
"""`name` or `owner/name`, as on the Hub; nothing that could leave the folder."""


def mirror_roots() -> list[Path]:
    """The folders in FINERY_DATA."""
    return [Path(root).expanduser() for root in os.environ.get("FINERY_DATA", "").split(os.pathsep) if root]


def mirror_candidates(path: str) -> list[Path]:
    """The folders that could hold `path`, in the order in which they are tried."""
    if not MIRRORED.match(path):
        return []
    names = dict.fromkeys((path, path.rpartition("/")[2]))
    return [root.resolve() / name for root in mirror_roots() for name in names]


def mirror_folder(path: str) -> Path | None:
    """The folder that holds `path`."""
    return next(
        (folder for folder in mirror_candidates(path) if os.path.isdir(folder) and configurations(folder)), None
    )


def beside(path: str, folder: Path) -> str | None:
    """The absolute path, or pattern, of the files that `path` means in a recipe that lies in `folder`; None where it
    names no file: an embedded set, one of FINERY_DATA, or nothing that is there."""
    if not path.strip() or path.startswith(EMBEDDED) or mirror_folder(path) is not None:
        return None
    place = os.path.abspath(folder / os.path.expanduser(path))
    return place if os.path.exists(place) or (is_pattern(path) and matches(place)) else None


def question_rows(content: object) -> object:
    """The questions of SQuAD's own files, `{data: [{paragraphs: [{context, qas}]}]}`, as rows; other JSON as it is."""
    try:
        return [
            {"title": article.get("title"), "context": paragraph["context"], **question}
            for article in content["data"]  # type: ignore[index]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError, AttributeError):
        return content


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """What stands between blank lines."""
    inside: list[str] = []
    for line in lines:
        if line.strip():
            inside.append(line.rstrip("\n"))
        elif inside:
            yield "\n".join(inside)
            inside = []
    if inside:
        yield "\n".join(inside)
