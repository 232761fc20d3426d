"""Tasks of pairs: what is refused before anything loads, and whole runs that learn to rewrite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.runs.run import run
from pipelines.runs.workspace import StageStore
from pipelines.tasks.predictions import read_predictions
from tests.kept_baselines import kept_baselines

RECIPE = """\
name: rewriting
model: {{architecture: {shape}}}
tokenizer: {{train: wordpiece, vocab_size: 300}}
stages:
  - stage: supervised
    id: turn
    task: {{kind: seq2seq, source: source, target: target, train: train.jsonl, validation: validation.jsonl}}
    {keys}
  - {{stage: evaluate, baselines: [copy_source], generation: {{num_beams: 2, max_new_tokens: 12, iterations: 4, length_beam: 2}}}}
"""
SHAPE = "{family: encoder-decoder, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 4, intermediate_size: 128, max_position_embeddings: 32, norm_position: pre, initializer: xavier_uniform, hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0"
WORDS = ["river", "harbour", "winter", "evening", "stone", "bridge", "letter", "garden", "window", "candle"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sentences of three to six words, and the same words in capitals, one for one: aligned, but no copy."""
    random = np.random.default_rng(0)
    for split, rows in (("train", 400), ("validation", 30)):
        lines = []
        for _ in range(rows):
            words = random.choice(len(WORDS), random.integers(3, 7))
            texts = {
                "source": " ".join(WORDS[word] for word in words),
                "target": " ".join(f"x{word}x" for word in words),
            }
            lines.append(json.dumps(texts))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


def recipe(folder: Path, keys: str = "max_length: 16", shape: str = SHAPE + "}") -> Any:
    return loads(RECIPE.format(shape=shape, keys=keys), folder=folder)


def mistakes(folder: Path, keys: str, shape: str = SHAPE + "}") -> str:
    with pytest.raises(RecipeError) as caught:
        recipe(folder, keys, shape)
    return str(caught.value)


LEARN = "arguments: {{max_steps: {steps}, global_batch_size: 32, learning_rate: 5.0e-3, warmup_steps: 20, logging_steps: 20, save_steps: 1000}}"


def test_an_encoder_decoder_learns_to_rewrite(folder: Path):
    made = recipe(folder, "max_length: 16\n    " + LEARN.format(steps=90))
    place = run(made, folder / "runs", StageStore(folder / "home"))
    metrics = json.loads((place / "stages/02-evaluate/metrics.json").read_text())["turn"]
    assert set(metrics) == {"bleu", "chrf"}
    assert metrics["bleu"] > 80
    said = read_predictions(place / "stages/02-evaluate/predictions.parquet")["turn", "validation"]
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said["hypothesis"], [said["reference"]]).score)
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(said["hypothesis"], [said["reference"]]).score)
    details = json.loads((place / "stages/02-evaluate/details.json").read_text())["turn"]
    assert details["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert details["baselines"]["copy_source"]["bleu"] < 5
    assert list(kept_baselines(place / "stages/02-evaluate")) == ["copy_source"]
    low, high = details["intervals"]["bleu"]
    assert low <= metrics["bleu"] <= high
    assert details["generation"]["num_beams"] == 2
    head = json.loads((place / "stages/01-turn/model/head.json").read_text())
    assert head["kind"] == "seq2seq_lm"


def test_mask_predict_learns_to_rewrite_and_decodes_by_masks(folder: Path):
    shape = SHAPE + ", bidirectional_decoder: true, length_prediction: true}"
    made = recipe(folder, "max_length: 16\n    objective: mask_predict\n    " + LEARN.format(steps=200), shape)
    place = run(made, folder / "runs", StageStore(folder / "home"))
    metrics = json.loads((place / "stages/02-evaluate/metrics.json").read_text())["turn"]
    assert metrics["bleu"] > 40


def test_models_are_selected_by_the_loss_on_rows_set_aside(folder: Path):
    keys = (
        "max_source_length: 12\n    max_target_length: 10\n    max_train_samples: 40\n    early_stopping_patience: 2\n    "
        "arguments: {max_steps: 4, global_batch_size: 8, eval_strategy: steps, eval_steps: 2, save_steps: 2, load_best_model_at_end: true}"
    )
    place = run(recipe(folder, keys), folder / "runs", StageStore(folder / "home"))
    events = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    losses = [
        event["metrics"]["eval_loss"]
        for event in events
        if event["event"] == "metric" and "eval_loss" in event["metrics"]
    ]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)


def test_keys_of_pairs_are_refused_for_other_tasks(folder: Path):
    (folder / "labelled.csv").write_text("text,label\na,x\nb,y\n")
    text = (
        "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: supervised, objective: seq2seq, "
        "max_target_length: 9, task: {kind: classification, columns: [text], label: label, train: labelled.csv}}\n"
    )
    with pytest.raises(RecipeError) as caught:
        loads(text, folder=folder)
    said = str(caught.value)
    assert "objective: is for tasks of the kind seq2seq, but this task's kind is classification; leave it out" in said
    assert "max_target_length: is for tasks of the kind seq2seq" in said


def test_models_that_cannot_write_are_refused_before_anything_loads(folder: Path):
    assert "task: is a task of pairs, which needs a model that writes (seq2seq_lm)" in mistakes(
        folder, "max_length: 16", "{preset: bert-tiny}"
    )
    assert "objective: is mask_predict, which needs a decoder that looks both ways" in mistakes(
        folder, "objective: mask_predict\n    max_length: 16"
    )
    ahead = SHAPE + ", bidirectional_decoder: true, length_prediction: true}"
    assert "objective: is seq2seq, which needs a decoder that sees what is already written" in mistakes(
        folder, "max_length: 16", ahead
    )
    said = mistakes(folder, "objective: masked_lm\n    max_length: 16")
    assert (
        "objective: is masked_lm, which learns from text alone; a task of pairs takes one of seq2seq, mask_predict"
        in said
    )
    assert "max_target_length: is 40, but the model has max_position_embeddings 32" in mistakes(
        folder, "max_length: 16\n    max_target_length: 40"
    )


def test_sources_and_targets_teach_the_tokenizer_and_are_named_in_the_content(folder: Path):
    stage = recipe(folder).stages[0]
    texts = list(stage.texts())
    assert len(texts) == 800
    assert any("river" in text for text in texts)
    assert any(text.startswith("x") for text in texts)
    assert list(stage.content(None)) == ["train.source+target"]
