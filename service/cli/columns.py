"""What the columns of a user's file hold, and which of them are the text and the label.

Only the head of the file is read, and nothing heavier than pyarrow for Parquet. The rules, in order:

label   the column that was named; else a column called `label`, `target`, `class`, `sentiment`, `score`, … that can be
        one; else the column with the fewest different values that repeat; else the only column of numbers.
text    the columns that were named; else a known pair (`sentence1`, `sentence2`); else a column called `text`,
        `sentence`, `review`, …; else the column with the longest texts. Numbers, ids and the label are never text.
kind    regression where the label is a number with decimals, or one of more than 20 whole numbers; else classification.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pipelines.core.data_files import paragraphs, question_rows
from pipelines.core.data_limits import LONGEST_CELL, MOST_JSON, MOST_NAMES, parquet_batches
from pipelines.core.errors import CommandError, DataError
from pipelines.core.files import JSONObject
from pipelines.core.registry import nearest

MOST_ROWS = 100_000
"""Rows that are looked at; later ones could only add rare classes."""
MOST_CLASSES = 100
MOST_WHOLE_CLASSES = 20
"""More different whole numbers than this are a scale, not classes."""
LONGEST_LABEL = 10
"""Words a cell, on average, above which a column holds texts however often they repeat, not the names of classes."""
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")

LABEL_NAMES = (
    "label",
    "labels",
    "target",
    "class",
    "category",
    "sentiment",
    "polarity",
    "intent",
    "topic",
    "gold_label",
    "gold",
    "score",
    "rating",
    "stars",
    "similarity",
    "emotion",
    "verdict",
    "stance",
    "is_duplicate",
    "answer",
    "output",
    "y",
)
PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"), ("text_a", "text_b"),
    ("sentence_a", "sentence_b"), ("premise", "hypothesis"), ("question", "sentence"), ("question", "passage"),
    ("question", "context"), ("query", "document"), ("query", "passage"), ("question", "answer"),
    ("claim", "evidence"), ("title", "text"), ("title", "body"), ("title", "content"), ("title", "abstract"),
    ("title", "description"), ("subject", "body"), ("subject", "message"),
)  # fmt: skip
TEXT_NAMES = (
    "text",
    "sentence",
    "review",
    "content",
    "comment",
    "message",
    "tweet",
    "document",
    "body",
    "utterance",
    "passage",
    "article",
    "description",
    "question",
    "query",
    "headline",
    "title",
    "premise",
    "prompt",
    "input",
    "sms",
    "post",
    "abstract",
    "summary",
)
ID_NAME = re.compile(r"^(id|_id|idx|index|guid|uuid|row|row_?number|unnamed:.*|.*[_ -]id)$", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """One column of the rows that were read."""

    name: str
    kind: Literal["text", "whole", "number", "truth", "nested", "empty"]
    filled: int
    """Rows that hold something."""
    counts: Counter[str]
    """How often each value occurs."""
    words: float
    """Words a cell, on average."""
    longest: int
    """Words that 95 % of the cells stay below."""
    first_gap: int | None
    """Number of the first row that holds nothing; the first row is 1."""

    @property
    def is_id(self) -> bool:
        """Whether it only numbers the rows."""
        numbers = [int(value) for value in self.counts] if self.kind == "whole" else []
        counts_up = (
            self.filled > MOST_WHOLE_CLASSES and max(numbers, default=0) - min(numbers, default=0) + 1 == self.filled
        )
        return bool(ID_NAME.match(self.name.strip())) or (counts_up and len(numbers) == self.filled)


@dataclass(frozen=True)
class Table:
    """The head of a file."""

    file: Path
    columns: tuple[Column, ...]
    rows: int
    complete: bool
    """Whether these are all rows of the file."""
    cells: Sequence[JSONObject] = ()
    """The rows themselves."""

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> Column:
        """The column of that name. Raises CommandError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise CommandError(
            f"{self.file} has no column '{name}'.{nearest(name, self.names)} Columns found: {', '.join(self.names)}"
        )


@dataclass(frozen=True)
class ColumnChoice:
    """What is to be learnt from what."""

    texts: tuple[Column, ...]
    label: Column
    kind: Literal["classification", "regression"]
    unused: tuple[str, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are read, the label last."""
        return (*self.texts, self.label)

    @property
    def keys(self) -> JSONObject:
        """What describes the task in a recipe."""
        return {"columns": [column.name for column in self.texts], "label": self.label.name}

    @property
    def named(self) -> str:
        """What the stage is called after."""
        return self.label.name

    @property
    def words(self) -> float:
        """Words a row, on average."""
        return sum(column.words for column in self.texts)

    @property
    def longest(self) -> int:
        """Words that most rows stay below."""
        return sum(column.longest for column in self.texts)

    @property
    def epochs(self) -> int:
        """Passes over the rows: small files are read more often."""
        return 10 if self.label.filled < 2_000 else 5 if self.label.filled < 20_000 else 3

    @property
    def about(self) -> str:
        """What is learnt from what."""
        texts = " and ".join(f"'{column.name}'" for column in self.texts)
        if self.kind == "regression":
            return f"{texts} -> the number '{self.label.name}'"
        return f"{texts} -> '{self.label.name}', {len(self.label.counts)} classes"


class NoLabel(CommandError):
    """No column of the file can be what is to be learnt."""


def read(file: Path, most: int = MOST_ROWS) -> Table:
    """Look at the head of a file. Raises CommandError."""
    if not file.exists():
        beside = [each.name for each in file.parent.iterdir()] if file.parent.is_dir() else []
        raise CommandError(f"{file}: there is no such file.{nearest(file.name, beside)}")
    if file.is_dir():
        raise CommandError(f"{file} is a folder; give one file in it: {', '.join(ENDINGS)}")
    if file.suffix.lower() not in ENDINGS:
        raise CommandError(f"{file} has an unknown format; give a file that ends in one of {', '.join(ENDINGS)}")
    if file.stat().st_size == 0:
        raise CommandError(f"{file} is empty; give a file with a text and a label in each row")
    try:
        names, rows = _READERS[file.suffix.lower()](file, most + 1)
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise CommandError(f"{file} is not valid {file.suffix[1:].upper()}: {error}") from None
    except OSError as error:
        raise CommandError(f"{file} could not be read: {error.strerror or error}") from None
    if not rows:
        raise CommandError(f"{file} has column names but no rows; give a file with a text and a label in each row")
    complete = len(rows) <= most
    rows = rows[:most]
    columns = tuple(_profile(name, [row[position] for row in rows]) for position, name in enumerate(names))
    return Table(file, columns, len(rows), complete, [dict(zip(names, row, strict=True)) for row in rows])


def choose(table: Table, texts: Sequence[str] = (), label: str | None = None, kind: str | None = None) -> ColumnChoice:
    """Which columns are the text and the label. Raises CommandError."""
    if len(table.columns) == 1:
        raise CommandError(
            f"{table.file} has the single column '{table.names[0]}'; a task needs two at least, a text and a "
            f"label{hint(table.file, table.names)}"
        )
    if len(texts) > 2:
        raise CommandError(f"--text was given {len(texts)} times; a task reads one text column, or two as a pair")
    if kind not in (None, "classification", "regression"):
        raise CommandError(f"--kind is '{kind}', must be classification or regression")
    named = tuple(table.column(name) for name in texts)
    answer = table.column(label) if label is not None else _label(table, texts)
    if answer.name in texts:
        raise CommandError(f"'{answer.name}' was given as --text and as --label; the answer would be in the question")
    task_kind = _kind(table, answer, kind)
    questions = named or _texts(table, answer)
    for column in questions:
        if column.kind not in ("text", "whole", "number") or (
            column.kind != "text" and table.file.suffix.lower() in (".jsonl", ".json", ".parquet")
        ):
            raise CommandError(f"{table.file}: the column '{column.name}' does not hold texts{_columns(table)}")
    used = {answer.name, *(column.name for column in questions)}
    return ColumnChoice(questions, answer, task_kind, tuple(name for name in table.names if name not in used))


def _label(table: Table, texts: Sequence[str]) -> Column:
    candidates = [
        column for column in table.columns if column.name not in texts and column.kind not in ("nested", "empty")
    ]
    candidates = [column for column in candidates if not column.is_id]
    by_name = {column.name.strip().lower(): column for column in reversed(candidates)}
    for name in LABEL_NAMES:
        column = by_name.get(name)
        if column is not None and (column.kind != "text" or _repeats(column)):
            return column
    repeating = [
        column for column in candidates if _repeats(column) and not (column.kind == "number" or _scale(column))
    ]
    if repeating:
        return min(repeating, key=lambda column: len(column.counts))
    numbers = [column for column in candidates if column.kind in ("whole", "number") and len(column.counts) > 1]
    if len(numbers) == 1:
        return numbers[0]
    raise NoLabel(
        f"{table.file} has no column that looks like a label (few different values, or numbers){_columns(table)}; "
        "name it with --label COLUMN"
    )


def _texts(table: Table, label: Column) -> tuple[Column, ...]:
    candidates = [
        column for column in table.columns if column.kind == "text" and column.name != label.name and not column.is_id
    ]
    by_name = {column.name.strip().lower(): column for column in reversed(candidates)}
    for first, second in PAIRS:
        if first in by_name and second in by_name:
            return by_name[first], by_name[second]
    for name in TEXT_NAMES:
        if name in by_name:
            return (by_name[name],)
    if not candidates:
        raise CommandError(
            f"{table.file} has no column of texts beside the label '{label.name}'{_columns(table)}; name it with "
            "--text COLUMN"
        )
    return (max(candidates, key=lambda column: column.words),)


def _kind(table: Table, label: Column, kind: str | None) -> Literal["classification", "regression"]:
    numbers = label.kind in ("whole", "number")
    if label.kind in ("nested", "empty"):
        raise CommandError(f"{table.file}: the column '{label.name}' holds no single values, so it cannot be a label")
    if kind == "regression" and not numbers:
        raise CommandError(f"{table.file}: the column '{label.name}' holds no numbers, which regression needs")
    if kind == "regression" or (kind is None and numbers and (label.kind == "number" or _scale(label))):
        if len(label.counts) < 2:
            raise CommandError(
                f"{table.file}: the column '{label.name}' holds the same number in every row; nothing can be learnt "
                "from it"
            )
        return "regression"
    distinct = len(label.counts)
    if distinct < 2:
        raise CommandError(
            f"{table.file}: the column '{label.name}' holds '{next(iter(label.counts))}' in every row; a classifier "
            "needs two classes at least"
        )
    if distinct > MOST_CLASSES or distinct > label.filled // 2:
        scale = " (for numbers on a scale: --kind regression)" if numbers else ""
        raise CommandError(
            f"{table.file}: the column '{label.name}' has {distinct:,} different values in {label.filled:,} rows, "
            "too many classes "
            f"(at most {MOST_CLASSES}, each in two rows at least); name another column with --label COLUMN{scale}"
        )
    return "classification"


def _repeats(column: Column) -> bool:
    """Whether it has few values that come again and again."""
    few = 2 <= len(column.counts) <= MOST_CLASSES and len(column.counts) <= column.filled // 2
    return few and column.words <= LONGEST_LABEL


def _scale(column: Column) -> bool:
    return column.kind == "whole" and len(column.counts) > MOST_WHOLE_CLASSES


def _columns(table: Table) -> str:
    return f". Columns found: {', '.join(table.names)}"


def hint(file: Path, names: Sequence[str]) -> str:
    """What else may separate the cells of a file with a single column."""
    for separator, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and file.suffix.lower() in (".csv", ".tsv") and separator in names[0]:
            cure = "name it .tsv" if separator == "\t" else "save it with commas"
            return f" (its columns seem to be separated by {word}: {cure})"
    return ""


def _profile(name: str, cells: Sequence[object]) -> Column:
    filled = [cell for cell in cells if not _missing(cell)]
    gap = next((number for number, cell in enumerate(cells, start=1) if _missing(cell)), None)
    if not filled:
        return Column(name, "empty", 0, Counter(), 0.0, 0, gap)
    if any(isinstance(cell, list | dict) for cell in filled):
        return Column(name, "nested", len(filled), Counter(), 0.0, 0, gap)
    counts = Counter(_plain(cell) for cell in filled)
    lengths = sorted(len(str(cell).split()) for cell in filled)
    longest = lengths[min(len(lengths) - 1, math.ceil(0.95 * len(lengths)))]
    return Column(name, _cell_kind(filled, counts), len(filled), counts, sum(lengths) / len(lengths), longest, gap)


def _cell_kind(filled: Sequence[object], counts: Counter[str]) -> Literal["text", "whole", "number", "truth"]:
    if all(isinstance(cell, bool) for cell in filled):
        return "truth"
    if all(re.fullmatch(r"[+-]?\d{1,18}", value) for value in counts):
        return "whole"
    try:
        if all(math.isfinite(float(value)) for value in counts):
            return "number"
    except ValueError:
        pass
    return "text"


def _plain(cell: object) -> str:
    """The cell as the name of a class."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def _missing(cell: object) -> bool:
    return (
        cell is None or (isinstance(cell, float) and math.isnan(cell)) or (isinstance(cell, str) and not cell.strip())
    )


def _separated(file: Path, most: int, delimiter: str) -> tuple[list[str], list[list[Any]]]:
    csv.field_size_limit(LONGEST_CELL)
    with open(file, encoding="utf-8-sig", newline="") as text:
        lines = (row for row in csv.reader(text, delimiter=delimiter, strict=True) if row)
        names = next(lines, [])
        if any(not name.strip() for name in names) or not names:
            raise CommandError(f"{file} has a column without a name; its first line must name every column")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise CommandError(
                f"{file} names the column '{repeated[0]}' more than once; give every column its own name"
            )
        if any(re.fullmatch(r"[+-]?\d+(\.\d+)?", name.strip()) or len(name) > 80 for name in names):
            shown = ", ".join(name if len(name) <= 30 else name[:27] + "..." for name in names)
            raise CommandError(
                f"{file}: its first line ({shown}) looks like a row, not like column names; put a line such as "
                "text,label above it"
            )
        rows: list[list[Any]] = []
        for row in islice(lines, most):
            if len(row) != len(names):
                raise CommandError(
                    f"{file}: row {len(rows) + 1} has {len(row)} cells where the first line names {len(names)} "
                    f"columns; quote the cells that hold the separator{hint(file, names)}"
                )
            rows.append(row)
    return names, rows


def _objects(file: Path, objects: Iterator[object], most: int) -> tuple[list[str], list[list[Any]]]:
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(islice(objects, most), start=1):
        if not isinstance(row, dict):
            raise CommandError(f'{file}: row {number} is no object such as {{"text": "…", "label": "…"}}')
        rows.append(row)
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    if len(names) > MOST_NAMES:
        raise CommandError(
            f"{file} has {len(names):,} different names in its objects, at most {MOST_NAMES:,} are allowed"
        )
    return names, [[row.get(name) for name in names] for row in rows]


def _json_lines(file: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    def objects() -> Iterator[Any]:
        with open(file, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise CommandError(f"{file}: line {number} is not valid JSON: {error}") from None

    return _objects(file, objects(), most)


def _json(file: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    if file.stat().st_size > MOST_JSON:
        raise CommandError(
            f"{file} has more than {MOST_JSON:,} bytes and is read whole; write one object a line and name it .jsonl"
        )
    try:
        rows = question_rows(json.loads(file.read_text(encoding="utf-8-sig")))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise CommandError(
            f"{file} is not valid JSON: {error}; one object a line is JSONL: name such a file .jsonl"
        ) from None
    if not isinstance(rows, list):
        raise CommandError(f"{file} must hold a list of objects, one for each row")
    return _objects(file, iter(rows), most)


def _parquet(file: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    names: list[str] = []
    rows: list[list[Any]] = []
    try:
        for batch in parquet_batches(file, most):
            names = list(batch.schema.names)
            columns = [column.to_pylist() for column in batch.columns]
            rows += [list(row) for row in zip(*columns, strict=True)]
    except DataError as error:
        raise CommandError(str(error)) from None
    return names, rows


def _paragraphs(file: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    with open(file, encoding="utf-8-sig") as lines:
        return ["text"], [[text] for text in islice(paragraphs(lines), most)]


_READERS = {
    ".txt": _paragraphs,
    ".csv": lambda file, most: _separated(file, most, ","),
    ".tsv": lambda file, most: _separated(file, most, "\t"),
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
