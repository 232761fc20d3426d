"""`finery init DATA`: from the columns of one's own file to a recipe that runs as it is.

The recipe is an encoder from scratch, sized by how much text there is. Budgets are chosen so that a laptop finishes in
minutes; the comments in the recipe say what to raise. Learning rates are those of Turc et al. 2019, "Well-Read
Students Learn Better", arxiv.org/abs/1908.08962, for the small models.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.errors import EXIT_DONE, CommandError, RecipeError
from pipelines.core.files import write_text
from pipelines.core.load import loads
from pipelines.core.recipe import START, TOKENIZER
from service.cli.columns import ColumnChoice, Table, choose, read

ENOUGH_WORDS = 50_000
"""Below this, masked-language-model pretraining has too little text to learn words from: straight to the task."""
TOKENS_A_WORD = 1.4
"""Of a small vocabulary, special tokens included; measured on English it lies between 1.2 and 1.5."""
BLOCK, BATCH = 128, 32
PASSES = 10
"""Passes over the text while pretraining, between the bounds of STEPS."""
STEPS = (200, 2000)
PLAIN = re.compile(r"(\.\.?/)*[A-Za-z_][A-Za-z0-9_./-]*")
TAKEN = (START, TOKENIZER, "pretrain", "evaluate", "publish")
"""Ids of what the recipe has besides the task."""
WORDS_OF_YAML = {"true", "false", "null", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class RecipeDraft:
    """A recipe as text, and what it decided."""

    text: str
    name: str
    words: int
    pretrains: bool
    task: str
    """Id of the supervised stage."""


def draft(table: Table, choice: ColumnChoice, validation: Path | None, output: Path, name: str) -> RecipeDraft:
    """The recipe for a file whose columns are chosen; paths in it are relative to `output`'s folder."""
    words = round(_rows(table) * sum(column.words for column in choice.texts))
    pretrains = words >= ENOUGH_WORDS
    vocabulary = min(8192, max(1024, 2 ** round(math.log2(max(1, words) / 10))))
    length = min(
        512, max(32, 2 ** math.ceil(math.log2(TOKENS_A_WORD * sum(column.longest for column in choice.texts) + 3)))
    )
    task = _task_id(choice.label.name, name)
    train = _value(_relative(table.file, output))
    texts = [_value(column.name) for column in choice.texts]
    lines = [
        f"# Written by `finery init` from {table.file.name}: {table.rows:,}{'' if table.complete else ' and more'} "
        "rows,",
        f"# {label_comment(choice)}.",
        f"# finery run {output.name}          does all of it; --help shows the rest",
        f"# finery plan {output.name}         says what it will cost before it starts",
        f"name: {_value(name)}",
        "seed: 42",
        "",
        "model:",
        "  # BERT's shape with 4 layers of 256, built from scratch. Other presets: bert-tiny, bert-small, "
        "bert-medium, bert-base.",
        "  # A pretrained model instead: replace the line below and `tokenizer` by   checkpoint: owner/name   or a "
        "folder.",
        "  architecture: {preset: bert-mini}",
        "",
        f"tokenizer: {{train: wordpiece, vocab_size: {vocabulary}}}   # learnt from the texts below",
        "",
        "stages:",
    ]
    if pretrains:
        steps = min(STEPS[1], max(STEPS[0], math.ceil(PASSES * words * TOKENS_A_WORD / (BLOCK * BATCH) / 100) * 100))
        lines += [
            f"  # Learn the language of the file first: guess hidden words in its {_about(words)} words. More steps "
            "help, up to a point.",
            "  - stage: pretrain",
            "    objective: masked_lm",
            "    datasets:",
            *(f"      - {{path: {train}, text: {text}}}" for text in texts),
            f"    block_size: {BLOCK}",
            f"    arguments: {{max_steps: {steps}, per_device_train_batch_size: {BATCH}, learning_rate: 1e-3, "
            f"warmup_steps: 0.1, weight_decay: 0.01}}",
            "",
        ]
    else:
        lines += [
            f"  # The file has about {_about(words)} words, too few to learn a language from ({ENOUGH_WORDS:,} are a "
            "start), so there is no pretraining.",
            "  # With more text of the same kind, add:   - {stage: pretrain, objective: masked_lm, datasets: [{path: "
            "more.txt}]}",
        ]
    lines += [
        "  # Then learn the task. `tuner: {name: lora, r: 8}` learns a small update instead of every weight.",
        "  - stage: supervised",
        f"    id: {_value(task)}",
        "    task:",
        f"      kind: {choice.kind}",
        f"      columns: [{', '.join(texts)}]",
        f"      label: {_value(choice.label.name)}",
        f"      train: {train}",
        f"      validation: {_value(_relative(validation, output))}"
        if validation
        else "      # validation: dev.csv   # without it, 10 % of the rows are held out, and never learnt from",
        f"    max_length: {length}",
        f"    arguments: {{num_train_epochs: {_epochs(table.rows)}, per_device_train_batch_size: "
        f"{BATCH if length <= 128 else BATCH // 2}, "
        "learning_rate: 3e-4, warmup_steps: 0.1, weight_decay: 0.01}",
        "",
        "  # Score it on the rows it has not seen"
        + (", beside guessers that any model should beat." if choice.kind == "classification" else "."),
        "  - stage: evaluate",
        *(["    baselines: [majority, naive_bayes]"] if choice.kind == "classification" else []),
        "",
        "  # Write the checkpoint with its scores, and load it back to see that it is the same.",
        "  - stage: publish",
        f"    to: registry/{name}",
    ]
    return RecipeDraft("\n".join(lines) + "\n", name, words, pretrains, task)


def run_name(file: Path, given: str | None) -> str:
    """Name of the run: what was given, else the file's, else its folder's where the file is called `train` or
    `data`."""
    if given is not None:
        return given
    stem = file.stem
    if stem.lower() in ("train", "training", "data", "dataset") and file.resolve().parent.name:
        stem = file.resolve().parent.name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:60]
    return name or "my-model"


def _task_id(label: str, name: str) -> str:
    # an accent is no reason to lose the letter
    letters = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode()
    id = re.sub(r"[^A-Za-z0-9_-]+", "-", letters).strip("-_")[:60]
    if id.lower() in ("", "label", "labels", "target", "class", "y", *TAKEN):
        id = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:60]
    return id if id and id not in TAKEN else "task"


def label_comment(choice: ColumnChoice) -> str:
    texts = " and ".join(f"'{column.name}'" for column in choice.texts)
    if choice.kind == "regression":
        return f"{texts} -> the number '{choice.label.name}'"
    return f"{texts} -> '{choice.label.name}', {len(choice.label.counts)} classes"


def _rows(table: Table) -> int:
    """Rows of the whole file; where only its head was read, no fewer than these."""
    return table.rows


def _epochs(rows: int) -> int:
    """Small files are read more often."""
    return 10 if rows < 2_000 else 5 if rows < 20_000 else 3


def _about(count: int) -> str:
    """Two digits that matter."""
    if count < 100:
        return str(count)
    scale = 10 ** (len(str(count)) - 2)
    return f"{round(count / scale) * scale:,}"


def _relative(file: Path, output: Path) -> str:
    return os.path.relpath(file.resolve(), output.resolve().parent)


def _value(text: str) -> str:
    """A text as YAML, in quotes where it needs them."""
    return text if PLAIN.fullmatch(text) and text.lower() not in WORDS_OF_YAML else json.dumps(text, ensure_ascii=False)


SPLIT_NAMES = ("validation", "valid", "val", "dev", "test")
"""What a file with the rows to measure on is called beside `train`, the likeliest first."""
CLASSES_SHOWN = 6


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
    choice = choose(table, texts, label, kind)
    validation, doubt = find_validation(table, choice)
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
            "kind": choice.kind,
            "columns": [column.name for column in choice.texts],
            "label": choice.label.name,
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


def find_validation(table: Table, choice: ColumnChoice) -> tuple[Path | None, str | None]:
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
            other = read(beside)
            again = [other.column(column.name) for column in (*choice.texts, choice.label)]
        except CommandError as error:
            doubt = doubt or f"{beside.name} is not used for validation: {error}"
            continue
        new = (
            []
            if choice.kind == "regression"
            else [value for value in again[-1].counts if value not in choice.label.counts]
        )
        if again[-1].filled < other.rows:
            doubt = (
                doubt
                or f"{beside.name} is not used for validation: row {again[-1].first_gap} has no '{choice.label.name}'"
            )
        elif new:
            doubt = (
                doubt
                or f"{beside.name} is not used for validation: its class '{new[0]}' does not occur in {table.file.name}"
            )
        else:
            return beside, None
    return None, doubt


def save(output: Path, text: str) -> None:
    """Write the recipe whole or not at all. Raises CommandError."""
    try:
        write_text(output, text)
    except OSError as error:
        raise CommandError(f"{output} could not be written: {error.strerror or error}") from None


def report(
    table: Table, choice: ColumnChoice, validation: Path | None, written: RecipeDraft, output: Path
) -> list[str]:
    """What was found and what was written."""
    head = (
        f"{table.file}: {table.rows:,} rows"
        if table.complete
        else f"{table.file}: looked at the first {table.rows:,} rows"
    )
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
    steps = (
        ["pretrain", "fine-tune", "evaluate", "publish"] if written.pretrains else ["fine-tune", "evaluate", "publish"]
    )
    lines.append(f"Wrote {output}: {', '.join(steps)} to registry/{written.name}")
    return lines


def warnings(table: Table, choice: ColumnChoice) -> list[str]:
    """What will go wrong, or not well, with this file."""
    messages = []
    for column in (*choice.texts, choice.label):
        if column.first_gap is not None:
            gaps = table.rows - column.filled
            messages.append(
                f"{gaps:,} row{'s have' if gaps != 1 else ' has'} nothing in '{column.name}' (the first: row "
                f"{column.first_gap}); "
                "the run will refuse that: correct or remove first"
            )
    if table.rows < 200:
        messages.append(f"{table.rows} rows are very few: expect scores near guessing, and wide intervals")
    if choice.kind == "classification":
        value, rarest = choice.label.counts.most_common()[-1]
        if rarest < 10:
            messages.append(
                f"the class '{value}' has only {rarest} row{'s' if rarest != 1 else ''}; it will hardly be learnt"
            )
    return messages
