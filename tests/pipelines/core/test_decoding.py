"""The block that says how a model writes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from pipelines.core.decoding import Generation


def test_the_defaults_are_beam_search_and_ten_iterations():
    assert Generation().model_dump() == {
        "num_beams": 4,
        "length_penalty": 1.0,
        "max_new_tokens": None,
        "iterations": 10,
        "length_beam": 5,
    }


@pytest.mark.parametrize(
    "wrong", [{"num_beams": 0}, {"max_new_tokens": 0}, {"iterations": 0}, {"length_beam": 0}, {"beams": 4}]
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        Generation(**wrong)


def test_it_is_checked_without_any_heavy_library():
    code = "import sys, pipelines.core.decoding; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
