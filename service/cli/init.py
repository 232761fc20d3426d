"""`finery init DATA`: from the columns of one's own file to a recipe that runs as it is.

The rows are of the kind of task that knows their shape; else they have a text and a label; else they are nothing but
texts, which a model learns to continue.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipelines.core.errors import EXIT_DONE, CommandError, RecipeError
from pipelines.core.files import write_text
from pipelines.core.load import loads
from service.cli.columns import ColumnChoice, NoLabel, Table, choose, hint, read
from service.cli.recipe_draft import RecipeDraft, draft, draft_of_text, run_name, yaml_value
from service.cli.row_shapes import ShapeChoice, known_shapes, shape_of

SPLIT_NAMES = ("validation", "valid", "val", "dev", "test")
"""What a file with the rows to measure on is called beside `train`, the likeliest first."""
CLASSES_SHOWN = 6
WORDS = {"supervised": "fine-tune"}
"""Stages that are called otherwise where people read of them."""


def init(
    data: Path,
    output: Path,
    texts: Sequence[str],
    label: str | None,
    kind: str | None,
    name: str | None,
    force: bool,
    as_json: bool = False,
) -> int:
    """Look at the file, write the recipe, say what was found. Returns the exit code."""
    if output.exists() and not force:
        raise CommandError(f"{output} exists already; choose another name with --output, or overwrite it with --force")
    if not output.resolve().parent.is_dir():
        raise CommandError(f"{output} cannot be written: there is no folder {output.parent}")
    table = read(data)
    choice = chosen(table, texts, label, kind)
    validation, doubt = find_validation(table, choice)
    if choice is None:
        written = draft_of_text(table, validation, output, run_name(data, name))
    else:
        written = draft(table, choice, validation, output, run_name(data, name))
    try:
        loads(written.text, str(output), output.resolve().parent)
    except RecipeError as error:  # a name the user gave, say
        raise CommandError(f"no valid recipe could be written for {data}:\n{error}") from None
    save(output, written.text)
    doubts = [*([doubt] if doubt else []), *warnings(table, choice)]
    if as_json:
        told = {
            "status": "done",
            "exit_code": EXIT_DONE,
            "recipe": str(output),
            "name": written.name,
            "task": written.task,
            "kind": None if choice is None else choice.kind,
            "columns": table.names if choice is None else [column.name for column in choice.texts],
            "label": choice.label.name if isinstance(choice, ColumnChoice) else None,
            "keys": {} if choice is None else choice.keys,
            "rows": table.rows,
            "all_rows_read": table.complete,
            "validation": None if validation is None else str(validation),
            "pretrains": written.pretrains,
            "warnings": doubts,
        }
        print(json.dumps(told, ensure_ascii=False))
        return EXIT_DONE
    for line in report(table, choice, validation, written, output):
        print(line)
    for warning in doubts:
        print(f"warning: {warning}")
    print(f"\nNext:  finery run {output}")
    return EXIT_DONE


def chosen(
    table: Table, texts: Sequence[str], label: str | None, kind: str | None
) -> ColumnChoice | ShapeChoice | None:
    """What the rows are taken for; None for nothing but texts. Raises CommandError."""
    if not texts and (shape := shape_of(table, kind, label)) is not None:
        return shape
    only = table.columns[0] if len(table.columns) == 1 and not (texts or label or kind) else None
    if only is not None and only.kind == "text" and not hint(table.file, table.names):
        return None
    try:
        return choose(table, texts, label, kind)
    except NoLabel as error:
        raise CommandError(f"{error}. Rows of other kinds are known by their columns: {known_shapes()}") from None


def find_validation(table: Table, choice: ColumnChoice | ShapeChoice | None) -> tuple[Path | None, str | None]:
    """The file beside `train.csv` to measure on, if there is one that fits; and why one that is there does not."""
    stem = table.file.stem
    if "train" not in stem.lower():
        return None, None
    at = stem.lower().index("train")
    doubt = None
    for word in SPLIT_NAMES:
        beside = table.file.with_name(f"{stem[:at]}{word}{stem[at + len('train') :]}{table.file.suffix}")
        if not beside.is_file():
            continue
        try:
            why = _misfit(read(beside), table, choice)
        except CommandError as error:
            why = str(error)
        if why is None:
            return beside, None
        doubt = doubt or f"{beside.name} is not used for validation: {why}"
    return None, doubt


def _misfit(other: Table, table: Table, choice: ColumnChoice | ShapeChoice | None) -> str | None:
    """Why the rows of another file cannot be scored as those of this one would; None where they can. Raises
    CommandError."""
    if isinstance(choice, ShapeChoice):
        again = shape_of(other, choice.kind, None)
        return None if again is not None and again.keys == choice.keys else "its columns are not the same"
    columns = [other.column(column.name) for column in (table.columns if choice is None else choice.columns)]
    if choice is None:
        return None
    if columns[-1].filled < other.rows:
        return f"row {columns[-1].first_gap} has no '{choice.label.name}'"
    if choice.kind == "classification" and (new := columns[-1].counts.keys() - choice.label.counts.keys()):
        return f"its class '{min(new)}' does not occur in {table.file.name}"
    return None


def save(output: Path, text: str) -> None:
    """Write the recipe whole or not at all. Raises CommandError."""
    try:
        write_text(output, text)
    except OSError as error:
        raise CommandError(f"{output} could not be written: {error.strerror or error}") from None


def report(
    table: Table, choice: ColumnChoice | ShapeChoice | None, validation: Path | None, written: RecipeDraft, output: Path
) -> list[str]:
    """What was found and what was written."""
    head = (
        f"{table.file}: {table.rows:,} rows"
        if table.complete
        else f"{table.file}: looked at the first {table.rows:,} rows"
    )
    lines = [head, *_found(table, choice)]
    if choice is not None:
        lines.append(f"  scored on {validation.name}" if validation else "  scored on a tenth of the rows, held out")
    steps = [line.split()[-1] for line in written.text.splitlines() if line.startswith("  - stage: ")]
    lines.append(f"Wrote {output}: {', '.join(WORDS.get(step, step) for step in steps)} to registry/{written.name}")
    return lines


def _found(table: Table, choice: ColumnChoice | ShapeChoice | None) -> list[str]:
    """What the columns were taken for."""
    if choice is None:
        return [f"  text    {table.columns[0].name}  {table.columns[0].words:.0f} words on average; no label"]
    if isinstance(choice, ShapeChoice):
        kind = f"  task    {choice.about}"
        unused = f"  unused  {', '.join(choice.unused)}  (--kind, or --text and --label, choose others)"
        return [kind, f"  keys    {yaml_value(choice.keys)[1:-1]}", *([unused] if choice.unused else [])]
    width = max(len(column.name) for column in choice.columns)
    lines = [f"  text    {column.name:<{width}}  {column.words:.0f} words on average" for column in choice.texts]
    counts = choice.label.counts.most_common()
    if choice.kind == "classification":
        shown = ", ".join(f"{value} ({count:,})" for value, count in counts[:CLASSES_SHOWN])
        what = f"{len(counts)} classes: {shown}{', …' if len(counts) > CLASSES_SHOWN else ''}"
    else:
        values = [float(value) for value in choice.label.counts]
        what = f"numbers from {min(values):g} to {max(values):g}, so a regression"
    lines.append(f"  label   {choice.label.name:<{width}}  {what}")
    if choice.unused:
        lines.append(f"  unused  {', '.join(choice.unused)}  (--text and --label choose others)")
    return lines


def warnings(table: Table, choice: ColumnChoice | ShapeChoice | None) -> list[str]:
    """What will go wrong, or not well, with this file."""
    messages = []
    for column in choice.columns if isinstance(choice, ColumnChoice) else ():
        if column.first_gap is not None:
            gaps = table.rows - column.filled
            messages.append(
                f"{gaps:,} row{'s have' if gaps != 1 else ' has'} nothing in '{column.name}' (the first: row "
                f"{column.first_gap}); "
                "the run will refuse that: correct or remove first"
            )
    if choice is not None and table.rows < 200:
        messages.append(f"{table.rows} rows are very few: expect scores near guessing, and wide intervals")
    if isinstance(choice, ColumnChoice) and choice.kind == "classification":
        value, rarest = choice.label.counts.most_common()[-1]
        if rarest < 10:
            messages.append(
                f"the class '{value}' has only {rarest} row{'s' if rarest != 1 else ''}; it will hardly be learnt"
            )
    return messages
