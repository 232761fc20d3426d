"""Which head an architecture writes with, told by the recipe alone."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.models.heads import of_shape


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ({"preset": "gpt-tiny"}, "causal_lm"),
        ({"model_type": "gpt2"}, "causal_lm"),
        ({"preset": "transformer-tiny"}, "seq2seq_lm"),
        ({"model_type": "t5"}, "seq2seq_lm"),
        ({"model_type": "bart"}, "seq2seq_lm"),
        ({"preset": "bert-tiny"}, None),
        ({"model_type": "bert"}, None),
        ({"preset": "transformer-tiny", "bidirectional_decoder": True}, None),
    ],
)
def test_an_architecture_tells_it(shape: dict[str, Any], kind: str | None):
    found = of_shape(shape)
    assert (None if found is None else found.kind) == kind
