"""Which models look back only, by their words."""

from types import SimpleNamespace

import pytest

from pipelines.core.model_types import AFTER_PADDING, looks_back_only, sees_ahead, usable_positions


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
        ({"model_type": "finery-rnn"}, False),
        ({"model_type": "finery-rnn", "stack": "decoder"}, True),
        ({"model_type": "finery-rnn", "stack": "encoder"}, False),
        ({"model_type": "finery-cnn"}, False),
    ],
)
def test_the_first_token_knows_nothing_of_the_others(words, back):
    assert looks_back_only(words) is back


def test_a_baseline_that_sees_ahead_is_told_what_would_not():
    assert sees_ahead({"model_type": "finery-rnn", "stack": "decoder"}) is None
    assert sees_ahead({"model_type": "finery-rnn"}).endswith("what comes before: stack decoder, not encoder-decoder")
    assert sees_ahead({"model_type": "finery-cnn"}).endswith("use rnn with stack: decoder")


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}


def test_no_bound_is_none():
    assert usable_positions(SimpleNamespace()) is None
    assert usable_positions(SimpleNamespace(max_position_embeddings=-1)) is None  # XLNet


def test_the_published_roberta_reads_512_tokens():
    assert usable_positions(SimpleNamespace(model_type="roberta", max_position_embeddings=514, pad_token_id=1)) == 512


@pytest.mark.long
@pytest.mark.parametrize("model_type", ["bert", "camembert", "mpnet", "roberta", "xlm-roberta"])
def test_a_text_of_the_longest_length_is_read_and_a_longer_one_is_not(model_type):
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model_type, max_position_embeddings=20, pad_token_id=0, **SMALL)
    longest = usable_positions(config)
    assert longest == (20 if model_type not in AFTER_PADDING else 18 if model_type == "mpnet" else 19)
    model = AutoModel.from_config(config).eval()
    text = torch.full((1, longest + 1), 7)
    with torch.no_grad():
        model(input_ids=text[:, :longest])
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=text)
