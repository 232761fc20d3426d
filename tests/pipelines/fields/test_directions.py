"""Which models look back only, by their words."""

import pytest

from pipelines.core.model_types import looks_back_only


@pytest.mark.parametrize(
    ("words", "back"),
    [
        ({"model_type": "finery"}, False),
        ({"model_type": "finery", "family": "decoder"}, True),
        ({"model_type": "finery", "family": "encoder-decoder"}, False),
        ({"model_type": "gpt2"}, True),
        ({"model_type": "llama"}, True),
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "is_decoder": True}, True),
        ({"model_type": "t5"}, False),
        ({"model_type": "bart"}, False),
        ({"model_type": "no-such-type"}, False),
    ],
)
def test_the_first_token_knows_nothing_of_the_others(words, back):
    assert looks_back_only(words) is back
