"""Texts that can be scored, and those that cannot."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.metrics.base import paired_texts


def test_arrays_and_lists_are_taken():
    assert paired_texts(np.asarray(["a"], dtype=object), ["b"]) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("written", "true", "why"),
    [
        (["a"], ["a", "b"], "as many, found 1 and 2"),
        ([], [], "no example"),
        ([1], ["a"], "predictions must be texts, found int"),
        (["a"], [None], "references must be texts"),
    ],
)
def test_what_cannot_be_scored_is_refused(written, true, why):
    with pytest.raises(ValueError, match=why):
        paired_texts(written, true)
