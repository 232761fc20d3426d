"""The embedded data set `builtin/python-docs`: prose to pretrain on, and labelled tasks, without any download.

Configuration `text` (taken without a name) holds paragraphs, `labelled` holds the rows of the task; both are made by
`pipelines.data.python_docs` from the documentation that the running Python carries. `words`, `questions`, `endings` and
`preferences` hold rows of four other shapes of tasks, made by `pipelines.data.python_docs`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pipelines.core.data_files import EMBEDDED
from pipelines.core.errors import DataError
from pipelines.core.registry import nearest
from pipelines.data import python_docs
from pipelines.data.sources import check_split

if TYPE_CHECKING:
    from datasets import Dataset

PREFIX = EMBEDDED
NAMES = ("builtin/python-docs",)
CONFIGURATIONS = ("text", "labelled", *python_docs.ROWS)


@dataclass(frozen=True)
class PythonDocs:
    """One configuration of the documentation."""

    name: str

    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(python_docs.SPLITS)

    def load(self, split: str) -> Dataset:
        """The rows of a split; the labelled ones name their classes. Raises DataError."""
        from pipelines.data.tables import in_memory

        check_split(split, self.splits(), self.describe())
        table, features = _table(self.name, split)
        if not len(table):
            raise DataError(f"{self.describe()} is empty: this Python comes without its documentation")
        return in_memory(table, features)

    def content_hash(self, split: str) -> str:
        """SHA-256 of the rows: they differ between versions of Python. Raises DataError."""
        check_split(split, self.splits(), self.describe())
        return _content_hash(self.name, split)

    def describe(self) -> str:
        """What this is."""
        return f"data set '{NAMES[0]}/{self.name}'"


@cache
def _rows(name: str, split: str) -> list[Any]:
    """The rows of a configuration, made once in a process; nobody changes them."""
    stored = cast(Literal["train", "validation"], split)
    if name in python_docs.ROWS:
        return list(python_docs.ROWS[name](stored))
    return list(python_docs.labelled_rows(stored) if name == "labelled" else python_docs.text_rows(stored))


@cache
def _table(name: str, split: str) -> tuple[Any, Any]:
    """The rows as an Arrow table, made once in a process, and what is known of their columns."""
    import pyarrow as pa
    from datasets import ClassLabel, DatasetInfo, Features, Value

    rows = _rows(name, split)
    if name in python_docs.ROWS:
        return pa.Table.from_pylist(rows), None
    features = Features({"text": Value("string"), "source": Value("string")})
    if name == "labelled":
        features["label"] = ClassLabel(names=list(python_docs.LABELS))
        rows = [{**row, "label": features["label"].encode_example(row["label"])} for row in rows]
    return pa.Table.from_pylist(rows, schema=features.arrow_schema), DatasetInfo(features=features)


@cache
def _content_hash(name: str, split: str) -> str:
    rows = _rows(name, split)
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


def find(path: str, name: str | None) -> PythonDocs | None:
    """The embedded data set `path`. Raises DataError for a name below `builtin/` that does not exist."""
    if not path.startswith(PREFIX):
        return None
    if path not in NAMES:
        raise DataError(f"there is no embedded data set '{path}'.{nearest(path, NAMES)} Available: {', '.join(NAMES)}")
    if name is not None and name not in CONFIGURATIONS:
        raise DataError(
            f"data set '{path}' has no configuration '{name}'.{nearest(name, CONFIGURATIONS)} "
            f"Configurations found: {', '.join(CONFIGURATIONS)}"
        )
    return PythonDocs(name or CONFIGURATIONS[0])


def example(folder: Path) -> str:
    """A data set that is found here, put below `folder` where it has to be."""
    return NAMES[0]


def looked(path: str) -> list[str]:
    """Where `find` looked."""
    return [f"the embedded data sets ({', '.join(NAMES)})"] if path.startswith(PREFIX) else []
