"""Exports by the real command, read by the programs that they are for and by nothing of ours.

onnxruntime, llama-cpp-python and bitsandbytes are installed into environments of their own; FINERY_EXPORTS_BIN and
FINERY_LLAMA_BIN name the `bin` of environments that have them. Where llama-cpp-python has no wheel it is not compiled
here, which takes longer than all other long tests may: its test skips unless FINERY_LLAMA_BIN is set.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.interfaces import Head
from pipelines.models.opening import open_folder
from tests.environments import environment

ROOT = Path(__file__).parents[4]
TEXT = "the cat saw a good book and it was not dull but the dog runs on. we read it, so they sleep. "
DECODER = """\
name: novels
model: {architecture: {preset: llama-tiny, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 128, max_position_embeddings: 64}}
tokenizer: {train: byte_bpe, vocab_size: 300}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: novels.txt}], block_size: 32,
     arguments: {max_steps: 20, per_device_train_batch_size: 4, learning_rate: 3.0e-3}}
  - {stage: evaluate, datasets: [{path: held.txt}]}
  - {stage: publish, to: published}
"""
CLASSIFIER = """\
name: moods
model: {architecture: {preset: bert-tiny, hidden_size: 64, num_hidden_layers: 1, intermediate_size: 128}}
tokenizer: {train: wordpiece, vocab_size: 150}
stages:
  - {stage: supervised, max_length: 24, arguments: {max_steps: 10, per_device_train_batch_size: 4, learning_rate: 1.0e-3},
     task: {kind: classification, columns: [text], label: label, train: moods.csv, validation: moods.csv}}
  - {stage: evaluate}
  - {stage: publish, to: published}
"""
ONNXRUNTIME = """\
import json, sys
import numpy, onnxruntime, tokenizers

texts = json.load(sys.stdin)
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
session = onnxruntime.InferenceSession("model.onnx")
rows = []
for text in texts:
    encoded = tokenizer.encode(text)
    known = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
    feed = {each.name: numpy.array([known[each.name]]) for each in session.get_inputs()}
    rows.append(session.run(None, feed)[0][0].tolist())
print(json.dumps(rows))
"""
LLAMA = """\
import json, sys
from llama_cpp import Llama

model = Llama("model.gguf", n_ctx=64, logits_all=True, verbose=False)
print(json.dumps([
    model(text, max_tokens=8, temperature=0, logprobs=1)["choices"][0]["text"] for text in json.load(sys.stdin)
]))
"""


def ran(command: list[str], place: Path, given: str = "") -> str:
    """What a command prints. Nothing of this test's environment but the code reaches it."""
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("FINERY", "PYTHON"))}
    variables = outer | {"FINERY_HOME": str(place / "home"), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=place, env=variables, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-1000:]
    return done.stdout


def published(python: str, place: Path, recipe: str) -> None:
    """A model that the recipe trains for a moment and publishes."""
    (place / "recipe.yaml").write_text(recipe)
    (place / "novels.txt").write_text("\n".join([TEXT * 3] * 20))
    (place / "held.txt").write_text("\n".join([TEXT] * 3))
    rows = [f"{word} book,{'good' if word in ('good', 'fine') else 'bad'}" for word in ("good", "bad", "fine", "dull")]
    (place / "moods.csv").write_text("text,label\n" + "\n".join(rows * 6) + "\n")
    ran([python, "-m", "pipelines", "run", "recipe.yaml"], place)


def exported(python: str, place: Path, form: str, *more: str) -> dict[str, Any]:
    """What `finery export` says."""
    command = [python, "-m", "service.cli", "export", "published", form, "--to", form, "--json", *more]
    found: dict[str, Any] = json.loads(ran(command, place))
    return found


@pytest.mark.long
def test_onnxruntime_and_bitsandbytes_read_what_the_command_writes(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    packages = ("onnx", "onnxruntime", "onnxscript", "bitsandbytes")
    found = environment(tmp_path / "environment", "FINERY_EXPORTS_BIN", *packages)
    python = str(found / "python")
    published(python, tmp_path, CLASSIFIER)
    for form in ("onnx", "int8", "int4"):
        told = exported(python, tmp_path, form)
        assert told["scores"], form
        assert told["agreement"]["same_best"] == 1.0
    texts = ["good book", "a dull book that they read", "fine"]
    rows = json.loads(ran([python, "-c", ONNXRUNTIME], tmp_path / "onnx", json.dumps(texts)))
    model = open_folder(
        tmp_path / "published", Head("sequence_classification", ("bad", "good")), 0, trained_head=True
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "published")
    for text, row in zip(texts, rows, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0].tolist()
        assert row == pytest.approx(expected, abs=1e-4)
    suite = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/pipelines/publishing/exports/test_exports.py",
    ]
    assert "skipped" not in ran(suite, ROOT).splitlines()[-1]


@pytest.mark.long
def test_llama_cpp_reads_what_the_command_writes_and_scores_it_again(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    found = environment(
        tmp_path / "environment", "FINERY_LLAMA_BIN", "gguf", "llama-cpp-python", not_compiled="llama-cpp-python"
    )
    python = str(found / "python")
    published(python, tmp_path, DECODER)
    told = exported(python, tmp_path, "gguf", "--text", "novels.txt")
    assert {(each["benchmark"], each["metric"]) for each in told["scores"]} >= {
        ("held.txt", "bits_per_byte"),
        ("novels.txt", "bits_per_byte"),
    }
    for each in told["scores"]:
        assert each["exported"] == pytest.approx(each["published"], rel=1e-3), each
    texts = ["the cat saw", "we read it, so", "the dog"]
    written = json.loads(ran([python, "-c", LLAMA], tmp_path / "gguf", json.dumps(texts)))
    model = open_folder(tmp_path / "published", Head("causal_lm"), 0, trained_head=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "published")
    for text, theirs in zip(texts, written, strict=True):
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        assert theirs == tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    suite = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/pipelines/publishing/exports/test_gguf.py"]
    assert "skipped" not in ran(suite, ROOT).splitlines()[-1]
