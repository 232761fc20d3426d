"""llama.cpp reads what is written: the same tokens, the same logits, the same greedy text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.tokenizers.bpe import ByteBPE
from pipelines.models.heads import auto_class
from pipelines.publishing.exports.export import Original
from pipelines.publishing.exports.gguf import Gguf, architecture, byte_level
from pipelines.publishing.verify import SENTENCES
from tests.pipelines.publishing.conftest import make_tokenizer

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
OURS = {"model_type": "finery", "family": "decoder", "norm_position": "pre", "hidden_dropout_prob": 0.0, **SHAPE}
LLAMA = OURS | {
    "position": "rotary",
    "norm_type": "rms_norm",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "is_gated_act": True,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
GPT = OURS | {"position": "learned", "hidden_act": "gelu_new"}
MODELS = {
    "ours as llama": ("llama", LLAMA),
    "ours as llama, tied": ("llama", LLAMA | {"tie_word_embeddings": True, "rope_theta": 500.0}),
    "ours as gpt2": ("gpt2", GPT),
    "llama": ("llama", {"model_type": "llama", "num_key_value_heads": 2, **SHAPE}),
    "gpt2": ("gpt2", {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}


@pytest.fixture(scope="module")
def byte_bpe() -> Any:
    return ByteBPE().train([*SENTENCES, "hello there, the café costs 42 and more\nthan that"] * 4, 320)


@pytest.fixture
def made(byte_bpe: Any, tmp_path: Path) -> Callable[..., Original]:
    """A model with random weights and a byte-level tokenizer."""

    def make(words: dict[str, Any], kind: str = "causal_lm", tokenizer: Any = None) -> Original:
        import torch
        from transformers import AutoConfig

        tokenizer = tokenizer or byte_bpe
        words = dict(words)
        head, torch_seed = Head(kind), 5  # type: ignore[arg-type]
        torch.manual_seed(torch_seed)
        opened = auto_class(head)
        ends = {
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.cls_token_id,
            "eos_token_id": tokenizer.sep_token_id,
        }
        config = AutoConfig.for_model(words.pop("model_type"), vocab_size=len(tokenizer), **ends, **words)
        model = opened.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        return Original(tmp_path, head, model, tokenizer)

    return make


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_answers_as_the_model_does(name, made, tmp_path):
    pytest.importorskip("llama_cpp")
    arch, words = MODELS[name]
    exported = Gguf.write(made(words), tmp_path)
    assert exported.facts["architecture"] == arch
    assert exported.agreement is not None
    assert exported.agreement["largest_difference"] < 1e-3 * exported.agreement["largest_logit"]
    assert exported.agreement["same_best"] > 0.98  # random weights: two best tokens may be almost equal
    assert exported.facts["greedy texts that are the same"] in ("4 of 5", "5 of 5")
    assert (tmp_path / "model.gguf").read_bytes()[:4] == b"GGUF"


def test_a_chat_template_says_which_token_ends_an_answer(byte_bpe, monkeypatch):
    import copy
    from types import SimpleNamespace

    from pipelines.data.chat_templates import TEMPLATES
    from pipelines.publishing.exports import gguf

    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace(TokenType=MagicMock()))
    tokenizer, writer = copy.deepcopy(byte_bpe), MagicMock()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = TEMPLATES["chatml"]
    gguf._tokens(writer, tokenizer, byte_level(tokenizer), len(tokenizer))
    writer.add_eos_token_id.assert_called_once_with(tokenizer.sep_token_id)
    writer.add_eot_token_id.assert_called_once_with(tokenizer.convert_tokens_to_ids("<|im_end|>"))


def test_weights_in_another_order_are_noticed(made, tmp_path, monkeypatch):
    pytest.importorskip("llama_cpp")
    from pipelines.publishing.exports import gguf

    monkeypatch.setattr(gguf, "neighbours", lambda weight, heads: weight)
    with pytest.raises(ModelError, match="the gguf export answers otherwise: a logit differs by"):
        Gguf.write(made(MODELS["llama"][1]), tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (LLAMA | {"norm_position": "post"}, "its nearest, llama, needs norm_position: pre; export it to onnx"),
        (LLAMA | {"qk_norm": True}, "its nearest, llama, needs qk_norm: false"),
        (GPT | {"hidden_act": "gelu"}, "its nearest, gpt2, needs hidden_act: gelu_new"),
        (GPT | {"position": "alibi"}, "its nearest, gpt2, needs position: learned"),
        (
            {
                "model_type": "gpt_neo",
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global"], 2]],
            },
            "those that can be written are llama's and gpt2's",
        ),
    ],
)
def test_other_architectures_are_refused_with_what_can_be_exported(words, sentence, made):
    with pytest.raises(ModelError) as refused:
        architecture(made(words))
    assert sentence in str(refused.value)
    assert Gguf.misfit(words, "byte_bpe")  # which needs no model


@pytest.mark.parametrize("name", MODELS)
def test_what_can_be_written_is_seen_without_a_model(name, made):
    arch, words = MODELS[name]
    assert Gguf.misfit(words, "byte_bpe") is None
    assert architecture(made(words)) == arch


def test_models_that_do_not_continue_texts_are_refused_whatever_is_installed(made, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.publishing.exports.export.find_spec", lambda name: None)
    encoder = {"model_type": "finery", "family": "encoder", **SHAPE}
    with pytest.raises(ModelError, match="GGUF holds decoders that continue texts, and FineryForMaskedLM is none"):
        Gguf.write(made(encoder, "masked_lm"), tmp_path)


def test_other_tokenizers_are_refused():
    with pytest.raises(ModelError, match=r"byte-level BPE as GPT-2's alone .* and this tokenizer is Word"):
        byte_level(make_tokenizer())


def test_lower_case_is_refused():
    tokenizer = ByteBPE(lowercase=True).train(["Some text"] * 4, 300)
    with pytest.raises(ModelError, match="byte-level BPE as GPT-2's alone"):
        byte_level(tokenizer)
