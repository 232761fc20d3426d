"""The plan of a feedback stage: what is sampled is counted, what another model reads is told."""

from __future__ import annotations

from pathlib import Path

from pipelines.core.recipe import loads
from pipelines.runs.hardware import Device
from pipelines.runs.planning.plan import plan
from tests.pipelines.test_plan import CPU

RECIPE = """\
name: x
model: {{architecture: {{preset: {preset}}}}}
tokenizer: {{train: byte_bpe, vocab_size: 600}}
stages:
  - {{stage: pretrain, objective: {objective}, datasets: [{{path: text.jsonl}}], arguments: {{max_steps: 2}}}}
  - {{stage: feedback, prompts: {{path: text.jsonl, max_length: 10{more}}}, judge: {{name: rule, prefer: {{name: keyword, words: [a]}}}}, completions: 3, response_length: 20}}
"""


def planned(
    folder: Path, preset: str = "gpt-tiny", objective: str = "causal_lm", more: str = "", device: Device = CPU
) -> dict:
    (folder / "text.jsonl").write_text('{"text": "some words of a text"}\n' * 50)
    return plan(
        loads(RECIPE.format(preset=preset, objective=objective, more=more), folder=folder), device=device
    ).to_json()["stages"][1]


def test_completions_are_counted_and_questions_told(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert found["tokens"] == 50 * 3 * 30
    assert found["flops"] > 0
    assert found["seconds"] > 0
    assert any("at most 150 pairs are compared" in note for note in found["notes"])
    assert planned(tmp_path, more=", max_samples: 10")["flops"] == found["flops"] // 5


def test_an_encoder_decoder_reads_its_prompt_once(tmp_path: Path) -> None:
    assert planned(tmp_path, "t5-tiny", "span_corruption")["tokens"] == 50 * 3 * 30


def test_rows_that_cannot_be_counted_leave_it_open(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text('[{"text": "x"}]')
    text = RECIPE.format(preset="gpt-tiny", objective="causal_lm", more="").replace(
        "prompts: {path: text.jsonl", "prompts: {path: prompts.json"
    )
    (tmp_path / "text.jsonl").write_text('{"text": "some words of a text"}\n')
    found = plan(loads(text, folder=tmp_path), device=CPU).to_json()["stages"][1]
    assert found["flops"] is None
    assert any("max_samples" in note for note in found["notes"])
