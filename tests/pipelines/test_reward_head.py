from __future__ import annotations

import pytest
import torch

from pipelines import models
from pipelines.errors import ModelError
from pipelines.protocols import Head
from tests import tiny

HEAD = Head("reward")


@pytest.mark.parametrize(
    ("model_type", "shape", "name"),
    [
        ("finery", {"family": "encoder"}, "FineryForReward"), ("finery", {"family": "decoder"}, "FineryForReward"),
        ("bert", {}, "BertForSequenceClassification"), ("gpt2", {}, "GPT2ForSequenceClassification"),
    ],
)  # fmt: skip
def test_any_family_gets_a_head_of_one_output_and_keeps_it_on_the_disk(tmp_path, model_type, shape, name):
    model = tiny.build(model_type, HEAD, **shape).eval()
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    assert type(model).__name__ == name
    model.save_pretrained(str(tmp_path))
    again = models.open_folder(tmp_path, HEAD, 1, trained_head=True).eval()
    weights = again.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(model(**tiny.batch(3)).logits, again(**tiny.batch(3)).logits)
    assert again(**tiny.batch(3)).logits.shape == (3, 1)


def test_a_language_model_gets_a_fresh_head_and_is_no_trained_reward_model(tmp_path):
    tiny.build("finery", Head("causal_lm"), family="decoder").save_pretrained(str(tmp_path))
    fresh = models.open_folder(tmp_path, HEAD, 1)
    assert fresh.finery_new_modules == ["score"]
    with pytest.raises(ModelError, match="has no trained reward head for 1 outputs"):
        models.open_folder(tmp_path, HEAD, 1, trained_head=True)
