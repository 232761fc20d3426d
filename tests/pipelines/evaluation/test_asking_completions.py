"""A decoder that is asked to go on: what is scored is what likelihood and search say of the rows, prompt by prompt."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.data.chat_templates import TEMPLATES
from tests import tiny

ROWS = [{"prompt": f"{tiny.TEXTS[at]}:", "completion": f" {tiny.TEXTS[at + 8]}"} for at in range(6)]
SHAPE = {"family": "decoder", "initializer_range": 0.5}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build("finery", tiny.Head("causal_lm"), **SHAPE).eval()


def recipe(folder: Path, rows: list[dict[str, Any]], stage: str = "", task: str = "", learnt: str = "") -> Any:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return loads(
        "name: t\nmodel: {architecture: {preset: gpt-tiny}}\nstages:\n"
        f"  - {{stage: supervised, id: mine, max_length: 40{learnt}, task: {{kind: causal, train: rows.jsonl, validation: rows.jsonl{task}}}}}\n"
        f"  - {{stage: evaluate, per_device_eval_batch_size: 4, generation: {{max_new_tokens: 5}}{stage}}}\n",
        folder=folder,
    )


def asked(
    made: Any, context: Callable[..., Any], model: Any
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    tokenizers: list[Any] = []

    def open_tokenizer(stage_id: str | None = None) -> Any:
        tokenizers.append(stage_id)
        return copy.deepcopy(tiny.tokenizer())

    given = context(made, "evaluate", {"mine": model}, open_tokenizer=open_tokenizer)
    made.stage("evaluate").run(given)
    assert "mine" in tokenizers  # with the chat template that the stage left in it
    metrics, details = (
        json.loads((given.folder / f"{name}.json").read_text())["mine"] for name in ("metrics", "details")
    )
    return metrics, details, pq.read_table(given.folder / "predictions.parquet").to_pylist()


def alone(model: Any, prompt: str, answer: str) -> tuple[float, int, str]:
    """(bits of the answer and its end, their number, five tokens that the model likes best), one token at a time."""
    tokenizer = tiny.tokenizer()
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    wanted = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    bits, told = 0.0, []
    with torch.no_grad():
        for place, token in enumerate(wanted):
            logits = model(torch.tensor([[*ids, *wanted[:place]]])).logits[0, -1]
            bits -= torch.log_softmax(logits.double(), -1)[token].item() / torch.log(torch.tensor(2.0)).item()
        for _ in range(5):
            best = int(model(torch.tensor([[*ids, *told]])).logits[0, -1].argmax())
            told.append(best)
            if best == tokenizer.eos_token_id:
                break
    return bits, len(wanted), tokenizer.decode(told, skip_special_tokens=True).strip()


def test_likelihood_and_answers_are_those_of_each_prompt_alone(
    tmp_path: Path, context: Callable[..., Any], model: Any
) -> None:
    metrics, details, rows = asked(recipe(tmp_path, ROWS), context, model)
    expected = [alone(model, row["prompt"], row["completion"]) for row in ROWS]
    assert [row["hypothesis"] for row in rows] == [text for _, _, text in expected]
    assert [row["completion_bits"] for row in rows] == pytest.approx([bits for bits, _, _ in expected], rel=1e-4)
    assert [row["completion_tokens"] for row in rows] == [count for _, count, _ in expected]
    total, tokens = sum(bits for bits, _, _ in expected), sum(count for _, count, _ in expected)
    assert metrics["perplexity"] == pytest.approx(2 ** (total / tokens), rel=1e-3)
    assert metrics["bits_per_byte"] == pytest.approx(
        total / sum(len(row["completion"].encode()) for row in ROWS), rel=1e-3
    )
    assert 0 <= metrics["rougeL"] <= 100
    assert details["generation"] == {"num_beams": 1, "max_new_tokens": 5, "do_sample": False}
    assert (details["chat_template"], details["train_on"]) == (None, "completions")
    assert len({row["hypothesis"] for row in rows}) > 1  # the probe itself works: answers differ


def test_texts_without_a_prompt_are_measured_and_nothing_is_written(
    tmp_path: Path, context: Callable[..., Any], model: Any
) -> None:
    metrics, details, rows = asked(recipe(tmp_path, [{"text": row["completion"]} for row in ROWS]), context, model)
    assert set(metrics) == {"perplexity", "bits_per_byte"}
    assert rows == []
    assert "generation" not in details


MESSAGES = [
    {
        "messages": [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row["completion"].strip()},
        ]
    }
    for row in ROWS
]


@pytest.mark.parametrize(
    ("stage", "learnt", "name"),
    [
        (", chat_template: zephyr", ", chat_template: alpaca", "zephyr"),
        ("", ", chat_template: zephyr", "zephyr"),
        ("", "", "simple"),
    ],
)
def test_the_template_is_the_stage_s_else_the_training_s_else_the_default(
    stage: str, learnt: str, name: str, tmp_path: Path, context: Callable[..., Any], model: Any
) -> None:
    assert name in TEMPLATES
    _, details, rows = asked(recipe(tmp_path, MESSAGES, stage, learnt=learnt), context, model)
    assert details["chat_template"] == name
    assert [row["reference"] for row in rows] == [row["completion"].strip() for row in ROWS]


def test_settings_of_mask_predict_are_refused(tmp_path: Path) -> None:
    text = recipe(tmp_path, ROWS).to_yaml().replace("max_new_tokens: 5", "iterations: 5")
    with pytest.raises(RecipeError, match="iterations or length_beam, which are for mask-predict"):
        loads(text, folder=tmp_path)
