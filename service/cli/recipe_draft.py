"""The text of the recipe that `finery init` writes, from what the columns of a file were taken for.

The model is made from scratch, as small as its kind of task has one, and sized by how much text there is. Budgets are
chosen so that a laptop finishes in minutes; the comments in the recipe say what to raise. Learning rates of encoders
are those of Turc et al. 2019, "Well-Read Students Learn Better", arxiv.org/abs/1908.08962, for the small models.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.interfaces import FirstRecipe
from pipelines.core.recipe import START, TOKENIZER
from pipelines.core.registry import TASK_KINDS
from service.cli.columns import ColumnChoice, Table
from service.cli.row_shapes import ShapeChoice

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
    """Id of the stage that learns."""


def draft(
    table: Table, choice: ColumnChoice | ShapeChoice, validation: Path | None, output: Path, name: str
) -> RecipeDraft:
    """The recipe for a file whose columns are chosen; paths in it are relative to `output`'s folder."""
    first: FirstRecipe = TASK_KINDS.load(choice.kind).first_recipe
    words = round(table.rows * choice.words)
    pretrains = first.pretrains and bool(choice.texts) and words >= ENOUGH_WORDS
    length = min(512, max(32, 2 ** math.ceil(math.log2(TOKENS_A_WORD * choice.longest + 3))))
    task = _task_id(choice.named, name)
    train = yaml_value(_relative(table.file, output))
    lines = _head(table, choice.about, first.architecture, first.shape, first.tokenizer, words, output, name)
    if pretrains:
        lines += [
            f"  # Learn the language of the file first: guess hidden words in its {_about(words)} words. More steps "
            "help, up to a point.",
            *_pretraining("masked_lm", train, [column.name for column in choice.texts], words),
            "",
        ]
    elif first.pretrains:
        lines += [
            f"  # The file has about {_about(words)} words, too few to learn a language from ({ENOUGH_WORDS:,} are a "
            "start), so there is no pretraining.",
            "  # With more text of the same kind, add:   - {stage: pretrain, objective: masked_lm, datasets: [{path: "
            "more.txt}]}",
        ]
    lines += [
        f"  # {'Then learn' if first.pretrains else 'Learn'} the task. {first.hint}",
        f"  - stage: {first.stage}",
        f"    id: {yaml_value(task)}",
        "    task:",
        f"      kind: {choice.kind}",
        *(f"      {key}: {yaml_value(value)}" for key, value in choice.keys.items()),
        f"      train: {train}",
        f"      validation: {yaml_value(_relative(validation, output))}"
        if validation
        else "      # validation: dev.csv   # without it, 10 % of the rows are held out, and never learnt from",
        f"    max_length: {length}",
        f"    arguments: {{num_train_epochs: {choice.epochs}, per_device_train_batch_size: "
        f"{BATCH if length <= 128 else BATCH // 2}, "
        f"learning_rate: {first.learning_rate}, warmup_steps: 0.1, weight_decay: 0.01}}",
        "",
        "  # Score it on the rows it has not seen"
        + (", beside guessers that any model should beat." if first.baselines else "."),
        "  - stage: evaluate",
        *([f"    baselines: {yaml_value(list(first.baselines))}"] if first.baselines else []),
        *(f"    {key}" for key in first.evaluate),
        "",
        *_publication(name),
    ]
    return RecipeDraft("\n".join(lines) + "\n", name, words, pretrains, task)


def draft_of_text(table: Table, validation: Path | None, output: Path, name: str) -> RecipeDraft:
    """The recipe for a file that holds nothing but texts: a model that continues them."""
    first: FirstRecipe = TASK_KINDS.load("causal").first_recipe
    words = round(table.rows * table.columns[0].words)
    column = [] if table.file.suffix.lower() == ".txt" else [table.columns[0].name]
    lines = _head(table, "texts to pretrain on", first.architecture, first.shape, first.tokenizer, words, output, name)
    lines += [
        f"  # Learn to continue the texts, about {_about(words)} words. For a model that reads them instead:",
        "  # architecture: {preset: bert-mini} above, and   objective: masked_lm   here.",
        *_pretraining("causal_lm", yaml_value(_relative(table.file, output)), column, words),
        "",
    ]
    if validation is not None:
        path = yaml_value(_relative(validation, output))
        held_out = f"{{path: {path}{f', text: {yaml_value(column[0])}' if column else ''}}}"
        lines += ["  # Measure it on texts it has not seen.", f"  - {{stage: evaluate, datasets: [{held_out}]}}", ""]
    return RecipeDraft("\n".join([*lines, *_publication(name)]) + "\n", name, words, True, "pretrain")


def _head(
    table: Table, about: str, architecture: str, shape: str, tokenizer: str, words: int, output: Path, name: str
) -> list[str]:
    """What stands before the stages."""
    vocabulary = min(8192, max(1024, 2 ** round(math.log2(max(1, words) / 10))))
    return [
        f"# Written by `finery init` from {table.file.name}: {table.rows:,}{'' if table.complete else ' and more'} "
        "rows,",
        f"# {about}.",
        f"# finery run {output.name}          does all of it; --help shows the rest",
        f"# finery plan {output.name}         says what it will cost before it starts",
        f"name: {yaml_value(name)}",
        "seed: 42",
        "",
        "model:",
        f"  # {shape}",
        "  # A pretrained model instead: replace the line below and `tokenizer` by   checkpoint: owner/name   or a "
        "folder.",
        f"  architecture: {architecture}",
        "",
        f"tokenizer: {{train: {tokenizer}, vocab_size: {vocabulary}}}   # learnt from the texts below",
        "",
        "stages:",
    ]


def _pretraining(objective: str, train: str, columns: Sequence[str], words: int) -> list[str]:
    steps = min(STEPS[1], max(STEPS[0], math.ceil(PASSES * words * TOKENS_A_WORD / (BLOCK * BATCH) / 100) * 100))
    return [
        "  - stage: pretrain",
        f"    objective: {objective}",
        "    datasets:",
        *(f"      - {{path: {train}, text: {yaml_value(column)}}}" for column in columns),
        *([] if columns else [f"      - {{path: {train}}}"]),
        f"    block_size: {BLOCK}",
        f"    arguments: {{max_steps: {steps}, per_device_train_batch_size: {BATCH}, learning_rate: 1e-3, "
        f"warmup_steps: 0.1, weight_decay: 0.01}}",
    ]


def _publication(name: str) -> list[str]:
    return [
        "  # Write the checkpoint with its scores, and load it back to see that it is the same.",
        "  - stage: publish",
        f"    to: registry/{name}",
    ]


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


def _about(count: int) -> str:
    """Two digits that matter."""
    if count < 100:
        return str(count)
    scale = 10 ** (len(str(count)) - 2)
    return f"{round(count / scale) * scale:,}"


def _relative(file: Path, output: Path) -> str:
    return os.path.relpath(file.resolve(), output.resolve().parent)


def yaml_value(value: Any) -> str:
    """A value as YAML, texts in quotes where they need them."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {yaml_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_value, value))}]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)
