"""Every form of a model is opened from its own files and answers as the model does, as closely as the form can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.registry import EXPORTS
from pipelines.models.heads import auto_class
from pipelines.publishing.exports.export import Original, compare, logits_of
from tests.pipelines.publishing.conftest import make_tokenizer

SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
ENCODER = {"model_type": "finery", "family": "encoder", **SHAPE}
DECODER = {"model_type": "finery", "family": "decoder", "position": "rotary", **SHAPE}
WRITER = {"model_type": "finery", "family": "encoder-decoder", **SHAPE}
BERT = {"model_type": "bert", **SHAPE}
GPT = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 64}
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 1, "num_heads": 2}
LABELS = ("no", "yes", "both")
MODELS = {
    "encoder": (ENCODER, Head("sequence_classification", LABELS)),
    "tags": (ENCODER, Head("token_classification", LABELS)),
    "spans": (ENCODER, Head("question_answering")),
    "options": (ENCODER, Head("multiple_choice")),
    "masks": (ENCODER, Head("masked_lm")),
    "decoder": (DECODER, Head("causal_lm")),
    "writer": (WRITER, Head("seq2seq_lm")),
    "bert": (BERT, Head("sequence_classification", LABELS)),
    "gpt2": (GPT, Head("causal_lm")),
    "t5": (T5, Head("seq2seq_lm")),
}


@pytest.fixture
def original(tmp_path: Path) -> Callable[[str], Original]:
    """A model with random weights, by its name in MODELS."""

    def make(name: str) -> Original:
        import torch
        from transformers import AutoConfig

        from pipelines.models.heads import head_settings

        words, head = MODELS[name]
        kind = auto_class(head)
        tokenizer = make_tokenizer()
        torch.manual_seed(3)
        words = {key: value for key, value in words.items() if key != "model_type"}
        config = AutoConfig.for_model(
            MODELS[name][0]["model_type"],
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            **({"decoder_start_token_id": tokenizer.cls_token_id} if head.kind == "seq2seq_lm" else {}),
            **words,
            **head_settings(head),
        )
        model = kind.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return Original(tmp_path / "published", head, model, tokenizer)

    return make


def written(form: str, original: Original, out: Path) -> Any:
    out.mkdir()
    return EXPORTS.load(form).write(original, out)


def there(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_answers_as_the_model_does(name, original, tmp_path):
    there("onnx", "onnxruntime", "onnxscript")
    made = original(name)
    exported = written("onnx", made, tmp_path / "out")
    found = compare(made, exported, "onnx", 1e-4)
    assert found["largest_difference"] < 1e-4 * found["largest_logit"]
    assert found["same_best"] == 1.0
    assert "input_ids" in exported.facts["inputs"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".onnx") == ["model.onnx"]


@pytest.mark.long
def test_the_lines_of_its_card_run_where_the_files_lie(original, tmp_path, monkeypatch, capsys):
    there("onnx", "onnxruntime", "onnxscript")
    made = original("encoder")
    exported = written("onnx", made, tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    exec(exported.lines, {})
    printed = capsys.readouterr().out
    inputs = made.tokenizer(["Your text."], return_tensors="pt")
    expected = made.model(**inputs).logits.detach().numpy()[0]
    shown = np.array([float(each) for each in printed.split("[[")[1].split("]]")[0].replace(",", " ").split()])
    np.testing.assert_allclose(shown, expected, atol=1e-4)


@pytest.mark.long
def test_a_graph_that_answers_otherwise_is_refused(original, tmp_path):
    there("onnx", "onnxruntime", "onnxscript")
    made = original("encoder")
    exported = written("onnx", made, tmp_path / "out")
    made.model.classifier.bias.data += 1
    with pytest.raises(ModelError, match="the onnx export answers otherwise: a logit differs by"):
        compare(made, exported, "onnx", 1e-4)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("name", ["encoder", "decoder", "writer"])
def test_fewer_bits_are_smaller_and_still_the_same_model(form, name, original, tmp_path):
    there("bitsandbytes")
    made = original(name)
    exported = written(form, made, tmp_path / "out")
    assert exported.facts["quantization"] == "bitsandbytes"
    made.model.save_pretrained(tmp_path / "whole")
    before, after = ((tmp_path / place / "model.safetensors").stat().st_size for place in ("whole", "out"))
    assert after < before
    found = compare(made, exported, form, None)
    assert 0 < found["largest_difference"] < 0.2 * found["largest_logit"]
    again = auto_class(made.head).from_pretrained(tmp_path / "out").eval()
    np.testing.assert_array_equal(logits_of(again, made), logits_of(exported.model, made))


def test_rows_that_are_no_whole_blocks_are_refused_with_what_can_be_done(original, tmp_path, monkeypatch):
    there("bitsandbytes")
    monkeypatch.setitem(MODELS, "narrow", ({**ENCODER, "hidden_size": 48}, Head("masked_lm")))
    with pytest.raises(ModelError, match=r"rows of model.layers.0.attention.query have 48; export it to int8"):
        written("int4", original("narrow"), tmp_path / "out")


@pytest.mark.parametrize(("form", "module"), [("onnx", "onnxruntime"), ("int8", "bitsandbytes")])
def test_without_the_library_the_extra_is_named(form, module, original, tmp_path, monkeypatch):
    import importlib.util
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "onnx", sys)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == module else found(name, *more))
    with pytest.raises(ModelError, match=r"needs .*, which is not installed: pip install 'finery\[export\]'"):
        written(form, original("encoder"), tmp_path / "out")
