"""What every examiner must do: what is in the table is tested, a new entry at once."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from pipelines.core.interfaces import HeadKind
from pipelines.core.registry import EXAMINERS, LESSONS, TASKS
from pipelines.tasks.evaluation import HEADS, TaskEvaluation


def test_every_kind_of_task_that_is_learnt_can_be_examined_with_the_head_it_is_learnt_with():
    assert set(HEADS) == set(LESSONS)
    assert {kind: LESSONS.load(kind).head_kind for kind in LESSONS} == HEADS
    assert set(HEADS.values()) == set(EXAMINERS)
    assert {TASKS.load(name).kind for name in TASKS} <= set(HEADS)


@pytest.mark.parametrize("head", EXAMINERS)
def test_it_is_an_examiner_of_a_known_head(head: str):
    examiner = EXAMINERS.load(head)()
    assert isinstance(examiner, TaskEvaluation)
    assert head in get_args(HeadKind)
    assert type(examiner).ask is not TaskEvaluation.ask
    assert type(examiner).score is not TaskEvaluation.score


@pytest.mark.parametrize("head", EXAMINERS)
def test_it_judges_a_recipe_without_any_heavy_library(head: str):
    heavy = ("torch", "transformers", "datasets", "numpy", "pyarrow")
    code = f"import sys, {EXAMINERS.module(head)}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
