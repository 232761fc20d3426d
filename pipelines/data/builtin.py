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

from pipelines.core.errors import DataError
from pipelines.core.registry import nearest
from pipelines.data import python_docs
from pipelines.data import python_docs as python_docs_tasks
from pipelines.data.sources import check_split

if TYPE_CHECKING:
    from datasets import Dataset

PREFIX = "builtin/"
NAMES = ("builtin/python-docs",)
CONFIGURATIONS = ("text", "labelled", *python_docs_tasks.ROWS)


@dataclass(frozen=True)
class PythonDocs:
    """One configuration of the documentation."""

    name: str

    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(python_docs.SPLITS)

    def load(self, split: str) -> Dataset:
        """The rows of a split; the labelled ones name their classes. Raises DataError."""
        from datasets import ClassLabel, Dataset, Features, Value

        rows = self._rows(split)
        if rows and self.name in python_docs_tasks.ROWS:
            return Dataset.from_list(rows)
        features = {"text": Value("string"), "source": Value("string")}
        if self.name == "labelled":
            features["label"] = ClassLabel(names=list(python_docs.LABELS))
        if not rows:
            raise DataError(f"{self.describe()} is empty: this Python comes without its documentation")
        return Dataset.from_list(rows, features=Features(features))

    def content_hash(self, split: str) -> str:
        """SHA-256 of the rows: they differ between versions of Python. Raises DataError."""
        check_split(split, self.splits(), self.describe())
        return _content_hash(self.name, split)

    def describe(self) -> str:
        """What this is."""
        return f"data set '{NAMES[0]}/{self.name}'"

    def _rows(self, split: str) -> list[Any]:
        check_split(split, self.splits(), self.describe())
        stored = cast(Literal["train", "validation"], split)
        if self.name in python_docs_tasks.ROWS:
            return list(python_docs_tasks.ROWS[self.name](stored))
        return list(python_docs.labelled_rows(stored) if self.name == "labelled" else python_docs.text_rows(stored))


@cache
def _content_hash(name: str, split: str) -> str:
    rows = PythonDocs(name)._rows(split)
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
