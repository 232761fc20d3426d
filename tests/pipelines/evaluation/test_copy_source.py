"""Leaving the text as it is."""

from __future__ import annotations

import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import NotDefined, copy_source


def test_the_source_is_the_answer():
    train = Rows(["a"], None, ["ein"], [0])
    assert copy_source(train, Rows(["a dog", "two"], None, ["x", "y"], [0, 1]), 1).tolist() == ["a dog", "two"]


@pytest.mark.parametrize("labels", [[1], [0.5], None, []])
def test_classes_and_numbers_have_nothing_to_copy(labels):
    with pytest.raises(NotDefined, match="only a text that is to become another text"):
        copy_source(Rows(["a"], None, labels, [0]), Rows(["a"], None, None, [0]), 2)
