from __future__ import annotations

import pytest

from pipelines.core.registry import TASKS

ALPACA = TASKS.load("alpaca")
GSM8K = TASKS.load("gsm8k")
SELF_INSTRUCT_SEED = TASKS.load("self_instruct_seed")


@pytest.fixture(autouse=True)
def from_the_mirror(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_alpaca_holds_a_tenth_out_and_leaves_its_empty_outputs_out():
    train, held_out = ALPACA.rows("train"), ALPACA.rows("validation")
    assert len(train) + len(held_out) == 4_998  # of 5,000 rows, two have no output
    assert len(held_out) == 499  # a tenth of 5,000, one of which has no output
    assert not set(train.index) & set(held_out.index)


def test_the_seed_tasks_of_self_instruct():
    assert len(SELF_INSTRUCT_SEED.rows("train")) + len(SELF_INSTRUCT_SEED.rows("validation")) == 175


def test_every_reference_of_gsm8k_has_its_number():
    rows = GSM8K.rows("test")
    assert len(rows) == 1_319
    numbers = GSM8K.graded(rows.labels)
    assert numbers[:3] == ["18", "3", "70000"]  # as the file has them
    assert all(float(each) == float(each) for each in numbers)
