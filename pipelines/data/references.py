"""How a recipe names data: `{path: novels.jsonl, text: text}`, and what a path may be.

A path is, in this order: an embedded set (`builtin/…`), a set that a FINERY_DATA folder holds, a file, folder or
pattern relative to the recipe's folder, or a name on the Hub. Paths to files become absolute when a recipe is checked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from pipelines.core.config import Block, files_exist, server_reference
from pipelines.core.data_files import ENDINGS, is_pattern, matches, mirror_folder
from pipelines.core.errors import DataError
from pipelines.core.registry import nearest
from pipelines.data import hub
from pipelines.data.builtin import NAMES, PREFIX
from pipelines.data.licences import License
from pipelines.data.sources import DataSource, check_columns, find

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.data.text_reader import Position, Texts


def texts_of(rows: Dataset, column: str, described: str) -> list[str]:
    """The texts of `column` that hold more than white space, in their order. Raises DataError."""
    cells = rows[column][:]
    for number, cell in enumerate(cells, start=1):
        if cell is not None and not isinstance(cell, str):
            raise DataError(
                f"{described}, row {number}, holds {str(cell)[:40]!r} ({type(cell).__name__}) in the column "
                f"'{column}', must be a text; name the column of the text with 'text'"
            )
    texts = [cell for cell in cells if cell is not None and cell.strip()]
    if not texts:
        raise DataError(f"{described} has no text in the column '{column}': all {len(cells)} cells are empty")
    return texts


def resolve_path(path: str, info: ValidationInfo) -> str:
    """The path as the rest of the program knows it: absolute for files, else as it was written."""
    try:
        return _existing(path, Path((info.context or {}).get("folder", Path.cwd())))
    except ValueError:
        if files_exist(info):
            raise
        return path


def _existing(path: str, folder: Path) -> str:
    """The same for data that is within reach. Raises ValueError."""
    if not path.strip():
        raise ValueError("is empty, must be a file, a folder, a pattern, or the name of a data set")
    if path.startswith(PREFIX):
        if path not in NAMES:
            raise ValueError(f"'{path}' is not embedded.{nearest(path, NAMES)} Available: {', '.join(NAMES)}")
        return path
    if mirror_folder(path) is not None:
        return path
    place = Path(os.path.abspath(folder / os.path.expanduser(path)))
    if (
        os.path.isfile(place) and place.suffix.lower() not in ENDINGS
    ):  # false, and no error, for a name that is too long
        raise ValueError(f"'{path}' has an unknown format; known file endings: {', '.join(ENDINGS)}")
    if os.path.exists(place):
        return str(place)
    if is_pattern(path):
        if not matches(str(place)):
            raise ValueError(f"'{path}' matches no data file; looked for {place} ({', '.join(ENDINGS)})")
        return str(place)
    if (held := server_reference(path, "file")) is not None:
        raise ValueError(held)
    if path.startswith(("./", "../", "/", "~")) or place.suffix.lower() in ENDINGS:
        raise ValueError(f"'{path}' does not exist; looked for {place}{_neighbours(place)}")
    if not hub.NAME.match(path):
        raise ValueError(f"'{path}' is neither a file nor a folder (looked for {place}), and no Hub name owner/name")
    return path


def _neighbours(place: Path) -> str:
    """The nearest name among the files beside a missing one."""
    if not os.path.isdir(place.parent):
        return f" (there is no folder {place.parent})"
    hint = nearest(place.name, sorted(each.name for each in place.parent.iterdir() if each.suffix.lower() in ENDINGS))
    return f".{hint}" if hint else ""


DataPath = Annotated[str, AfterValidator(resolve_path)]
"""The type of a field that names data."""


class DatasetReference(Block):
    """Text to learn from: a data set and the column that holds its text."""

    path: DataPath
    """A file, folder or pattern (JSONL, JSON, CSV, TSV, Parquet, text), `builtin/python-docs`, or a data set's name."""
    name: str | None = None
    """The configuration of a data set that has several."""
    split: str = Field("train", min_length=1)
    """The part that is read."""
    text: str = Field("text", min_length=1)
    """The column that holds the text."""
    license: License = None
    """Its licence as the Hub names it, such as `cc-by-4.0`, for the cards of models that learnt from it. Default: what
    the data set's own card says."""

    def source(self) -> DataSource:
        """Where the data lies. Raises DataError."""
        return find(self.path, self.name)

    def load(self) -> Dataset:
        """The rows, their text column checked. Raises DataError."""
        source = self.source()
        rows = source.load(self.split)
        check_columns((self.text,), list(rows.column_names), f"{source.describe()}, split '{self.split}',")
        return rows

    def rows(self, most: int | None = None) -> list[str]:
        """The texts that are not empty, in their order, only the first `most` when given. Raises DataError."""
        from pipelines.data.sources import FileSource

        source = self.source()
        head = (
            source.texts(self.split, self.text, most) if most is not None and isinstance(source, FileSource) else None
        )
        return texts_of(self.load() if head is None else head, self.text, source.describe())[:most]

    def texts(self, most: int | None = None, start: Position | None = None, streaming: bool = False) -> Texts:
        """What `rows` gives, read one after another, from `start` on. Raises DataError, also while it is read."""
        from pipelines.data.text_reader import open_texts

        return open_texts(self.source(), self.split, self.text, most, start, streaming)

    def content(self) -> str:
        """Content hash of the rows. Raises DataError."""
        return self.source().content_hash(self.split)


def short_names(datasets: Sequence[DatasetReference], taken: Sequence[str] = ()) -> list[str]:
    """A name for each data set: its path (of files, the last part), with the split where others share it."""
    short = [Path(each.path).name if Path(each.path).is_absolute() else each.path for each in datasets]
    every = [*short, *taken]
    split = [
        f"{name}:{each.split}" if every.count(name) > 1 else name for name, each in zip(short, datasets, strict=True)
    ]
    return [
        f"{name}:{each.name or each.text}" if split.count(name) > 1 else name
        for name, each in zip(split, datasets, strict=True)
    ]
