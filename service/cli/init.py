"""`finery init DATA`: from the columns of one's own file to a recipe that runs as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import EXIT_DONE, CommandError, RecipeError
from service.columns import Choice, Table, choose, read
from service.draft import Draft, draft, run_name

SPLIT_NAMES = ("validation", "valid", "val", "dev", "test")
"""What a file with the rows to measure on is called beside `train`, the likeliest first."""
CLASSES_SHOWN = 6


def init(
    data: Path, output: Path, texts: Sequence[str], label: str | None, kind: str | None, name: str | None, force: bool
) -> int:
    """Look at the file, write the recipe, say what was found. Returns the exit code."""
    from pipelines.recipe import loads

    if output.exists() and not force:
        raise CommandError(f"{output} exists already; choose another name with --output, or overwrite it with --force")
    if not output.resolve().parent.is_dir():
        raise CommandError(f"{output} cannot be written: there is no folder {output.parent}")
    table = read(data)
    choice = choose(table, texts, label, kind)
    validation, doubt = find_validation(table, choice)
    written = draft(table, choice, validation, output, run_name(data, name))
    try:
        loads(written.text, str(output), output.resolve().parent)
    except RecipeError as error:  # a name the user gave, say
        raise CommandError(f"no valid recipe could be written for {data}:\n{error}") from None
    save(output, written.text)
    for line in told(table, choice, validation, written, output):
        print(line)
    for warning in [*([doubt] if doubt else []), *warnings(table, choice)]:
        print(f"warning: {warning}")
    print(f"\nNext:  finery run {output}")
    return EXIT_DONE


def find_validation(table: Table, choice: Choice) -> tuple[Path | None, str | None]:
    """The file beside `train.csv` to measure on, if there is one that fits; and why one that is there does not."""
    stem = table.file.stem
    if "train" not in stem.lower():
        return None, None
    at = stem.lower().index("train")
    doubt = None
    for word in SPLIT_NAMES:
        beside = table.file.with_name(f"{stem[:at]}{word}{stem[at + len('train'):]}{table.file.suffix}")
        if not beside.is_file():
            continue
        try:
            other = read(beside)
            again = [other.column(column.name) for column in (*choice.texts, choice.label)]
        except CommandError as error:
            doubt = doubt or f"{beside.name} is not used for validation: {error}"
            continue
        new = [] if choice.kind == "regression" else [value for value in again[-1].counts if value not in choice.label.counts]
        if again[-1].filled < other.rows:
            doubt = doubt or f"{beside.name} is not used for validation: row {again[-1].first_gap} has no '{choice.label.name}'"
        elif new:
            doubt = doubt or f"{beside.name} is not used for validation: its class '{new[0]}' does not occur in {table.file.name}"
        else:
            return beside, None
    return None, doubt


def save(output: Path, text: str) -> None:
    """Write the recipe whole or not at all. Raises CommandError."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, output)
    except OSError as error:
        raise CommandError(f"{output} could not be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def told(table: Table, choice: Choice, validation: Path | None, written: Draft, output: Path) -> list[str]:
    """What was found and what was written."""
    head = f"{table.file}: {table.rows:,} rows" if table.complete else f"{table.file}: looked at the first {table.rows:,} rows"
    width = max(len(column.name) for column in (*choice.texts, choice.label))
    lines = [head]
    for column in choice.texts:
        lines.append(f"  text    {column.name:<{width}}  {column.words:.0f} words on average")
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
    lines.append(f"  scored on {validation.name}" if validation else "  scored on a tenth of the rows, held out")
    steps = ["pretrain", "fine-tune", "evaluate", "publish"] if written.pretrains else ["fine-tune", "evaluate", "publish"]
    lines.append(f"Wrote {output}: {', '.join(steps)} to registry/{written.name}")
    return lines


def warnings(table: Table, choice: Choice) -> list[str]:
    """What will go wrong, or not well, with this file."""
    found = []
    for column in (*choice.texts, choice.label):
        if column.first_gap is not None:
            gaps = table.rows - column.filled
            found.append(
                f"{gaps:,} row{'s have' if gaps != 1 else ' has'} nothing in '{column.name}' (the first: row {column.first_gap}); "
                "the run will refuse that: correct or remove first"
            )
    if table.rows < 200:
        found.append(f"{table.rows} rows are very few: expect scores near guessing, and wide intervals")
    if choice.kind == "classification":
        value, rarest = choice.label.counts.most_common()[-1]
        if rarest < 10:
            found.append(f"the class '{value}' has only {rarest} row{'s' if rarest != 1 else ''}; it will hardly be learnt")
    return found
