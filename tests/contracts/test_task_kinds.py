"""What every kind of task that a recipe may describe in place must do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import Block, flatten
from pipelines.core.registry import METRICS, TASK_KINDS
from pipelines.tasks.base import HELD_OUT, Task

EXAMPLES: dict[str, dict[str, Any]] = {
    "classification": {"columns": ("a", "b"), "label": "class", "train": "train.csv"},
    "regression": {"columns": ("a",), "label": "score", "train": "train.csv"},
    "seq2seq": {"source": "a", "target": "b", "train": "train.csv"},
    "causal": {"train": "train.csv"},
    "instruction_pairs": {"train": "train.csv"},
    "token_classification": {"train": "train.csv"},
    "qa": {"train": "train.csv"},
    "multiple_choice": {"train": "train.csv"},
    "preference": {"train": "train.csv"},
}
"""A new kind needs an example here: the keys that it must have."""
MORE: dict[str, dict[str, Any]] = {
    "causal": {"columns": {"prompt": "a", "completion": "b"}},
    "instruction_pairs": {"columns": {"prompt": "a", "completion": "b"}},
    "token_classification": {"train": "train.jsonl"},
    "qa": {"train": "train.jsonl"},
    "multiple_choice": {"train": "train.jsonl"},
    "preference": {"columns": {"prompt": "a", "chosen": "b", "rejected": "class"}},
}
"""Keys that this file needs beside those."""
LEARNT_AS = {"instruction_pairs": "seq2seq"}
"""Kinds that are another way to write one that is learnt."""
HEADS = {
    "seq2seq": "seq2seq_lm",
    "causal": "causal_lm",
    "instruction_pairs": "seq2seq_lm",
    "token_classification": "token_classification",
    "qa": "question_answering",
    "multiple_choice": "multiple_choice",
    "preference": "reward",
}
"""Kinds that no sequence classification head answers."""


@pytest.fixture(params=list(TASK_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"one {n},two {n},{'yes' if n % 2 else 'no'},{n}.25" for n in range(30)]
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("\n".join(["a,b,class,score", *lines]))
    rows = [
        {
            "tokens": ["two", str(n)],
            "tags": ["O", "B-N"],
            "question": f"which {n}?",
            "context": f"one {n} and two",
            "answers": {"text": [str(n)], "answer_start": [4]},
            "options": [str(n), "none"],
            "answer": "AB"[n % 2],
        }
        for n in range(30)
    ]
    for name in ("train.jsonl", "dev.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def dev(kind: str) -> str:
    """The validation file of the kind's example."""
    return str({**EXAMPLES[kind], **MORE.get(kind, {})}["train"]).replace("train", "dev")


def block(kind: str, folder: Path, **changes: Any) -> Any:
    data = {"kind": kind} | EXAMPLES[kind] | MORE.get(kind, {}) | changes
    return TASK_KINDS.load(kind).model_validate(data, context={"folder": folder})


def test_it_makes_a_task_with_rows_a_head_and_known_metrics(kind: str, folder: Path):
    task = block(kind, folder, validation=dev(kind)).task("my-stage")
    assert isinstance(task, Task)
    assert (task.name, task.kind) == ("my-stage", LEARNT_AS.get(kind, kind))
    assert set(task.metrics) <= set(METRICS)
    assert len(task.rows("train")) == len(task.rows("validation")) == 30
    assert len(task.rows("train").labels or ()) == 30
    assert task.head.kind == HEADS.get(kind, "sequence_classification")
    assert set(task.content()) == {"train", "validation"}


def test_without_validation_rows_some_are_held_out(kind: str, folder: Path):
    task = block(kind, folder).task("my-stage")
    assert HELD_OUT in task.splits
    assert len(task.rows("train")) + len(task.rows(HELD_OUT)) == 30


def test_it_writes_itself_down_and_reads_itself_back(kind: str, folder: Path):
    made = block(kind, folder, validation=dev(kind))
    assert isinstance(made, Block)
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in made.plain().items()}
    assert type(made).model_validate(plain, context={"folder": Path("/")}) == made


def test_what_is_missing_or_unknown_is_a_mistake_at_its_key(kind: str, folder: Path):
    with pytest.raises(ValidationError) as caught:
        TASK_KINDS.load(kind).model_validate({"kind": kind, "trian": "train.csv"}, context={"folder": folder})
    found = dict(flatten(caught.value))
    assert found.pop(("trian",)).startswith("unknown key 'trian'. Did you mean 'train'?")
    assert found == {(key,): "is missing" for key in EXAMPLES[kind]}


def test_every_key_is_explained(kind: str):
    assert all(field.description for name, field in TASK_KINDS.load(kind).model_fields.items() if name != "kind")


def test_it_is_checked_without_any_heavy_library(kind: str):
    heavy = ("torch", "transformers", "datasets", "numpy", "pyarrow")
    code = f"import sys, {TASK_KINDS.module(kind)}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
