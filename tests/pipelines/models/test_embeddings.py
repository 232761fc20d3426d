"""Vectors of texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from torch import nn

from pipelines.models import predict
from pipelines.models.embeddings import embed
from tests import writers

TEXTS = ["the cat", "a good book saw the cat", "the", "a book a book a book a book", "good"]


class Refuses(nn.Module):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the head was asked")


def test_the_head_is_not_asked() -> None:
    model, tokenizer = writers.model("bert").eval(), writers.tokenizer()
    expected = [embed(model, tokenizer, [text])[0][0] for text in TEXTS]
    model.cls = Refuses()
    vectors, tokens = embed(model, tokenizer, TEXTS)
    assert np.allclose(vectors, expected, atol=1e-6)
    assert tokens == sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_processor_gets_fewer_long_texts_at_a_time(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, seen = writers.model("bert").eval(), writers.tokenizer(), []
    monkeypatch.setattr(predict, "rows_on_cpu", lambda *given: rows)
    model.bert.register_forward_pre_hook(lambda *given: seen.append(len(given[2]["input_ids"])), with_kwargs=True)
    embed(model, tokenizer, TEXTS)
    assert max(seen) == rows


def test_an_adapter_takes_part() -> None:
    torch.manual_seed(0)
    words = {"task_type": "FEATURE_EXTRACTION", "target_modules": ["query"], "init_lora_weights": False}
    model = get_peft_model(writers.model("bert"), LoraConfig(**words)).eval()
    tuned, _ = embed(model, writers.tokenizer(), TEXTS)
    merged, _ = embed(model.merge_and_unload(), writers.tokenizer(), TEXTS)
    assert np.allclose(tuned, merged, atol=1e-6)
    assert not np.allclose(tuned, embed(writers.model("bert").eval(), writers.tokenizer(), TEXTS)[0], atol=1e-3)


def test_prompts_take_part() -> None:
    torch.manual_seed(0)
    words = {"task_type": "FEATURE_EXTRACTION", "num_virtual_tokens": 3, "num_layers": 2, "token_dim": 16}
    model = get_peft_model(writers.model("bert"), PrefixTuningConfig(**words, num_attention_heads=2)).eval()
    prefixed, _ = embed(model, writers.tokenizer(), TEXTS)
    assert not np.allclose(prefixed, embed(writers.model("bert").eval(), writers.tokenizer(), TEXTS)[0], atol=1e-3)
