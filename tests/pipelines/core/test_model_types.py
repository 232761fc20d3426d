"""Which models look back only, by their words."""

from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from pipelines.core.model_types import AFTER_PADDING, looks_back_only, loses_window, sees_ahead, usable_positions


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


@pytest.mark.parametrize(
    ("words", "tokens", "lost"),
    [({}, 8, True), ({}, 3, False), ({"max_window_layers": 2}, 8, False), ({"use_sliding_window": False}, 8, False)],
)
def test_a_ready_mask_that_loses_a_window_is_told(words, tokens, lost):
    """Held against what the model does: whether it answers as one without a window."""
    shape = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    windowed = Qwen2Config(
        **shape, **({"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1} | words)
    )
    torch.manual_seed(0)
    model, whole = Qwen2ForCausalLM(windowed).eval(), Qwen2ForCausalLM(Qwen2Config(**shape)).eval()
    whole.load_state_dict(model.state_dict())
    ids = torch.arange(tokens)[None]
    ready = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        plain, given, expected = model(ids).logits, model(ids, attention_mask=ready).logits, whole(ids).logits
    torch.testing.assert_close(given, expected)  # once this fails, transformers puts the window into ready masks
    assert torch.allclose(plain, given, atol=1e-6) is not lost
    assert (loses_window(windowed.to_dict(), tokens) is not None) is lost
