"""What every teacher must do: what is in the table is tested, a new entry at once."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from pipelines.core.interfaces import HeadKind
from pipelines.core.registry import LESSONS, TASK_KINDS, TASKS
from pipelines.tasks.training import TaskTraining

READ_AS = {"instruction_pairs": "seq2seq"}
"""Kinds of a recipe whose tasks are of another kind once they are read."""


def test_every_kind_of_task_can_be_learnt():
    assert {READ_AS.get(kind, kind) for kind in TASK_KINDS} == set(LESSONS)
    assert {TASKS.load(name).kind for name in TASKS} <= set(LESSONS)


@pytest.mark.parametrize("kind", LESSONS)
def test_it_is_a_teacher_with_a_known_head(kind: str):
    teacher = LESSONS.load(kind)()
    assert isinstance(teacher, TaskTraining)
    assert teacher.head_kind in get_args(HeadKind)
    assert type(teacher).prepare is not TaskTraining.prepare


@pytest.mark.parametrize("kind", LESSONS)
def test_it_judges_a_recipe_without_any_heavy_library(kind: str):
    heavy = ("torch", "transformers", "datasets", "numpy", "pyarrow")
    code = f"import sys, {LESSONS.module(kind)}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
