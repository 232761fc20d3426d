"""What a recipe may say about masked language modelling."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.interfaces import Head
from pipelines.objectives.masked_lm import MaskedLM


def test_the_defaults_are_those_of_the_paper():
    objective = MaskedLM()
    assert (objective.probability, objective.replace_with_mask, objective.replace_with_random) == (0.15, 0.8, 0.1)
    assert objective.whole_word is False
    assert objective.head == Head("masked_lm")


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"probability": 0.0}, "probability", "is 0.0, must be greater than 0"),
        ({"probability": 1.0}, "probability", "is 1.0, must be less than 1"),
        ({"replace_with_mask": 1.1}, "replace_with_mask", "is 1.1, must be at most 1"),
        ({"replace_with_mask": 0.95}, "replace_with_random", "and replace_with_mask add up to 1.05, must be at most 1"),
        ({"probabilty": 0.2}, "probabilty", "unknown key 'probabilty'. Did you mean 'probability'?"),
    ],
)
def test_shares_that_cannot_be_are_mistakes(changes: dict[str, Any], key: str, expected: str):
    with pytest.raises(ValidationError) as caught:
        MaskedLM.model_validate({"name": "masked_lm"} | changes)
    ((place, message),) = flatten(caught.value)
    assert ".".join(map(str, place)) == key
    assert message.startswith(expected)


def test_all_shares_may_be_used_up():
    assert MaskedLM(replace_with_mask=0.9, replace_with_random=0.1).replace_with_mask == 0.9


def test_the_block_is_known_without_any_heavy_library():
    code = "import sys, pipelines.objectives.masked_lm; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
