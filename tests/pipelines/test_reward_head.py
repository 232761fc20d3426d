from __future__ import annotations

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.models import opening
from tests import tiny

HEAD = Head("reward")


@pytest.mark.parametrize(
    ("model_type", "shape", "name"),
    [
        ("finery", {"family": "encoder"}, "FineryForReward"),
        ("finery", {"family": "decoder"}, "FineryForReward"),
        ("bert", {}, "BertForSequenceClassification"),
        ("gpt2", {}, "GPT2ForSequenceClassification"),
    ],
)
def test_any_family_gets_a_head_of_one_output_and_keeps_it_on_the_disk(tmp_path, model_type, shape, name):
    model = tiny.build(model_type, HEAD, **shape).eval()
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    assert type(model).__name__ == name
    model.save_pretrained(str(tmp_path))
    again = opening.open_folder(tmp_path, HEAD, 1, trained_head=True).eval()
    weights = again.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(model(**tiny.batch(3)).logits, again(**tiny.batch(3)).logits)
    assert again(**tiny.batch(3)).logits.shape == (3, 1)


def test_a_language_model_gets_a_fresh_head_and_is_no_trained_reward_model(tmp_path):
    tiny.build("finery", Head("causal_lm"), family="decoder").save_pretrained(str(tmp_path))
    fresh = opening.open_folder(tmp_path, HEAD, 1)
    assert fresh.finery_new_modules == ["score"]
    with pytest.raises(ModelError, match="has no trained reward head for 1 outputs"):
        opening.open_folder(tmp_path, HEAD, 1, trained_head=True)
