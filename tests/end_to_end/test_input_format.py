"""GPT's input format on a checkpoint that never saw its tokens: trained, scored, published, and read by transformers alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipelines.core.load import load
from pipelines.runs.run import run
from tests import tiny

RECIPE = """\
name: grown
model: {checkpoint: decoder}
stages:
  - stage: supervised
    task: builtin/python-docs
    input_format: gpt
    auxiliary_lm: 0.5
    max_length: 40
    max_train_samples: 32
    arguments: {max_steps: 3, global_batch_size: 8, learning_rate: 1e-2}
  - {stage: evaluate, max_eval_samples: 20}
  - {stage: publish, to: registry/grown}
"""


@pytest.mark.long
def test_a_decoder_learns_three_new_tokens_and_is_published_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from pipelines.data.python_docs import text_rows
    from pipelines.data.tokenizers.bpe import ByteBPE

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINERY_HOME", str(tmp_path / "home"))
    tokenizer = ByteBPE().train((row["text"] for row in text_rows("validation")[:200]), 400)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    pretrained = tiny.build("gpt2", tiny.Head("causal_lm"), vocab_size=400, tie_word_embeddings=False)
    pretrained.save_pretrained("decoder")
    tokenizer.save_pretrained("decoder")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run(load(tmp_path / "recipe.yaml"), Path("runs/grown"))

    opened = AutoTokenizer.from_pretrained("registry/grown")
    model = AutoModelForSequenceClassification.from_pretrained("registry/grown").eval()
    assert model.config.vocab_size == 403
    rows = pq.read_table("runs/grown/stages/02-evaluate/predictions.parquet").to_pylist()
    with torch.no_grad():
        said = [
            model(**opened(row["text"], truncation=True, max_length=40, return_tensors="pt")).logits[0].numpy()
            for row in rows
        ]
    np.testing.assert_allclose(np.stack(said), [row["logits"] for row in rows], atol=1e-4)
    assert json.loads(Path("registry/grown/publication.json").read_text())["verification"]["rows"] == 20
