"""Evaluating a decoder on answers: likelihoods, written answers, and the rows that are kept."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipelines.core.errors import DataError, ModelError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.core.registry import TASKS
from pipelines.core.results import read_scores
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.metrics.perplexity import Tally, completion_likelihood
from pipelines.tasks.causal.evaluation import CompletionPredictions, likelihoods, score_completions
from pipelines.tasks.causal.task import Dialogues
from pipelines.tasks.predictions import write_predictions
from pipelines.tasks.scoring import graded
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
    made: Any, evaluation_context: Callable[..., Any], model: Any
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    tokenizers: list[Any] = []

    def open_tokenizer(stage_id: str | None = None) -> Any:
        tokenizers.append(stage_id)
        return copy.deepcopy(tiny.tokenizer())

    given = evaluation_context(made, "evaluate", {"mine": model}, open_tokenizer=open_tokenizer)
    made.stage("evaluate").run(given)
    assert "mine" in tokenizers  # with the chat template that the stage left in it
    metrics, details = (
        json.loads((given.folder / f"{name}.json").read_text())["mine"] for name in ("metrics", "details")
    )
    return metrics, details, pq.read_table(given.folder / "predictions.parquet").to_pylist()


def alone(model: Any, prompt: str, answer: str) -> tuple[float, int, str, int]:
    """(bits of the answer and its end, their number, five tokens that the model likes best, how many of the answer's it
    likes best), one token at a time."""
    tokenizer = tiny.tokenizer()
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    wanted = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    bits, told, right = 0.0, [], 0
    with torch.no_grad():
        for place, token in enumerate(wanted):
            logits = model(torch.tensor([[*ids, *wanted[:place]]])).logits[0, -1]
            bits -= torch.log_softmax(logits.double(), -1)[token].item() / torch.log(torch.tensor(2.0)).item()
            right += int(logits.argmax()) == token
        for _ in range(5):
            best = int(model(torch.tensor([[*ids, *told]])).logits[0, -1].argmax())
            told.append(best)
            if best == tokenizer.eos_token_id:
                break
    return bits, len(wanted), tokenizer.decode(told, skip_special_tokens=True).strip(), right


def test_likelihood_and_answers_are_those_of_each_prompt_alone(
    tmp_path: Path, evaluation_context: Callable[..., Any], model: Any
) -> None:
    metrics, details, rows = asked(recipe(tmp_path, ROWS), evaluation_context, model)
    expected = [alone(model, row["prompt"], row["completion"]) for row in ROWS]
    assert [row["hypothesis"] for row in rows] == [text for _, _, text, _ in expected]
    assert [row["completion_bits"] for row in rows] == pytest.approx([bits for bits, _, _, _ in expected], rel=1e-4)
    assert [row["completion_tokens"] for row in rows] == [count for _, count, _, _ in expected]
    assert [row["completion_right"] for row in rows] == [right for *_, right in expected]
    total, tokens = sum(bits for bits, _, _, _ in expected), sum(count for _, count, _, _ in expected)
    assert metrics["mean_token_accuracy"] == sum(right for *_, right in expected) / tokens
    assert metrics["perplexity"] == pytest.approx(2 ** (total / tokens), rel=1e-3)
    assert metrics["bits_per_byte"] == pytest.approx(
        total / sum(len(row["completion"].encode()) for row in ROWS), rel=1e-3
    )
    assert 0 <= metrics["rougeL"] <= 100
    assert details["generation"] == {"num_beams": 1, "max_new_tokens": 5, "do_sample": False}
    assert (details["chat_template"], details["train_on"]) == (None, "completions")
    assert len({row["hypothesis"] for row in rows}) > 1  # the probe itself works: answers differ


def test_a_diverged_model_has_an_infinite_perplexity_and_one_warning(
    tmp_path: Path, evaluation_context: Callable[..., Any], model: Any
) -> None:
    diverged = copy.deepcopy(model)
    with torch.no_grad():
        diverged.get_output_embeddings().weight.mul_(1e4)
    made = recipe(tmp_path, ROWS)
    given = evaluation_context(made, "evaluate", {"mine": diverged}, open_tokenizer=lambda _=None: tiny.tokenizer())
    made.stage("evaluate").run(given)
    assert json.loads((given.folder / "metrics.json").read_text())["mine"]["perplexity"] == "inf"
    (scores,) = read_scores(given.folder, "evaluate")
    assert scores.metrics["perplexity"] == math.inf
    assert "perplexity" not in scores.intervals
    warnings = [event["message"] for event in read_events(given.events.path) if event["event"] == "warning"]
    assert [each for each in warnings if "perplexity" in each] == [
        "mine: perplexity is inf, no finite number, so that no table compares it; where the training diverged, lower "
        "its learning rate"
    ]
    with torch.no_grad():
        diverged.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(ModelError, match="gives NaN or infinity for answers: its training diverged"):
        made.stage("evaluate").run(given)


def test_texts_without_a_prompt_are_measured_and_nothing_is_written(
    tmp_path: Path, evaluation_context: Callable[..., Any], model: Any
) -> None:
    metrics, details, rows = asked(
        recipe(tmp_path, [{"text": row["completion"]} for row in ROWS]), evaluation_context, model
    )
    assert set(metrics) == {"perplexity", "bits_per_byte", "mean_token_accuracy"}
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
    stage: str, learnt: str, name: str, tmp_path: Path, evaluation_context: Callable[..., Any], model: Any
) -> None:
    assert name in TEMPLATES
    _, details, rows = asked(recipe(tmp_path, MESSAGES, stage, learnt=learnt), evaluation_context, model)
    assert details["chat_template"] == name
    assert [row["reference"] for row in rows] == [row["completion"].strip() for row in ROWS]


def test_settings_of_mask_predict_are_refused(tmp_path: Path) -> None:
    text = recipe(tmp_path, ROWS).to_yaml().replace("max_new_tokens: 5", "iterations: 5")
    with pytest.raises(RecipeError, match="iterations or length_beam, which are for mask-predict"):
        loads(text, folder=tmp_path)


ALPACA = TASKS.load("alpaca")
GSM8K = TASKS.load("gsm8k")

TALLY = Tally(
    np.array([0, 1]),
    {
        "bits": np.array([6.0, 2.0]),
        "tokens": np.array([3.0, 1.0]),
        "right": np.array([2.0, 1.0]),
        "bytes": np.array([4.0, 12.0]),
    },
)


def said(texts, labels=("a cat", "a dog"), tally=TALLY):
    rows = Dialogues(["one", "two"], None, list(labels), [4, 9])
    return CompletionPredictions(
        "b", "test", "", rows, None if texts is None else np.asarray(texts, dtype=object), tally
    )


def test_texts_and_likelihood_are_scored_together():
    found = said(["a cat", "bird"])
    scores = score_completions(ALPACA)(found.answers, found.labels)
    # 8 bits over 4 tokens and over 16 bytes, 3 of 4 tokens right
    written = {"rouge1": 50.0, "rouge2": 50.0, "rougeL": 50.0}
    assert scores == {**written, "perplexity": 4.0, "bits_per_byte": 0.5, "mean_token_accuracy": 0.75}
    ranges = found.intervals(ALPACA, score_completions(ALPACA), 0)
    assert set(ranges) == set(scores) == set(ALPACA.scores)
    assert all(low <= scores[name] <= high for name, (low, high) in ranges.items())


def test_without_prompts_there_is_a_likelihood_only():
    found = said(None)
    assert set(score_completions(ALPACA)(found.answers, found.labels)) == {
        "perplexity",
        "bits_per_byte",
        "mean_token_accuracy",
    }
    assert set(found.intervals(ALPACA, None, 0)) == {"perplexity", "bits_per_byte", "mean_token_accuracy"}
    assert found.doubt(ALPACA) is None
    assert found.table().num_rows == 0


def test_guessers_write_texts_alone():
    assert (
        score_completions(ALPACA)(np.asarray(["a cat", "a dog"], dtype=object), ["a cat", "a dog"])["rougeL"] == 100.0
    )


def test_gsm8k_compares_the_number_behind_four_hashes():
    # the rule of the authors' dataset.py: the first match of the pattern, thousands separators left out
    texts = ["She has 9 left.\n#### 1,250", "#### 12.", "18", "#### -3\n#### 4"]
    assert graded(GSM8K, texts).tolist() == ["1250", "12", "", "-3"]
    found = said(["so #### 1250", "it is 7"], ("#### 1,250", "#### 7"))
    assert score_completions(GSM8K)(found.answers, found.labels)["exact_match"] == 50.0


def test_a_pattern_compares_what_its_group_holds():
    task = replace(GSM8K, answer_pattern=r"answer is (\w+)")
    assert graded(task, ["The answer is yes.", "no"]).tolist() == ["yes", ""]


def test_the_predictions_of_each_row_carry_its_likelihood(tmp_path):
    only = Tally(np.array([1]), {name: each[1:] for name, each in TALLY.columns.items()})
    write_predictions(tmp_path / "p.parquet", [said(["x", "y"], tally=only)])
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert (table["source"], table["reference"], table["hypothesis"], table["index"]) == (
        ["one", "two"],
        ["a cat", "a dog"],
        ["x", "y"],
        [4, 9],
    )
    assert table["completion_bits"][1] == 2.0
    assert np.isnan(table["completion_bits"][0])


def test_one_text_for_all_rows_is_a_doubt():
    assert "writes 'x' for every one of the 6 examples" in str(said(["x"] * 6, ["a cat", "a dog"] * 3).doubt(ALPACA))
    assert said(["x"] * 6, ["a cat"] * 6).doubt(ALPACA) is None


def test_the_numbers_of_texts_must_agree():
    with pytest.raises(DataError, match="written texts but"):
        score_completions(ALPACA)(np.asarray(["a"], dtype=object), ["a", "b"])


def dialogues(count=9):
    return [
        Dialogue(
            ({"role": "user", "content": one}, {"role": "assistant", "content": f" {other}"}),
            (False, True),
            templated=False,
        )
        for one, other in zip(tiny.TEXTS[:count], tiny.TEXTS[count : 2 * count], strict=True)
    ]


@pytest.fixture(scope="module")
def decoder_of():
    return tiny.build("finery", Head("causal_lm"), family="decoder").eval()


def by_hand(decoder_of, tokenizer, dialogue):
    """(bits, tokens) of an answer and its end, token by token."""
    prompt, answer = (tokenizer(each["content"], add_special_tokens=False)["input_ids"] for each in dialogue.messages)
    answer = [*answer, tokenizer.eos_token_id]
    bits = 0.0
    for place, token in enumerate(answer):
        with torch.no_grad():
            logits = decoder_of(input_ids=torch.tensor([[*prompt, *answer[:place]]])).logits[0, -1]
        bits -= logits.double().log_softmax(-1)[token].item() / math.log(2)
    return bits, len(answer)


def test_bits_and_tokens_are_those_of_asking_token_by_token(decoder_of):
    tokenizer, rows = copy.deepcopy(tiny.tokenizer()), dialogues()
    tally = likelihoods(decoder_of, tokenizer, rows, 48, batch_size=4)
    expected = [by_hand(decoder_of, tokenizer, each) for each in rows]
    assert tally.documents.tolist() == list(range(9))
    assert tally.columns["bits"].tolist() == pytest.approx([bits for bits, _ in expected], rel=1e-4)
    assert tally.columns["tokens"].tolist() == [tokens for _, tokens in expected]
    assert tally.columns["bytes"].tolist() == [len(each.completion.encode()) for each in rows]
    figures = tally.figures(completion_likelihood)
    total = sum(bits for bits, _ in expected)
    assert figures["perplexity"] == pytest.approx(2 ** (total / sum(tokens for _, tokens in expected)), rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(
        total / sum(len(each.completion.encode()) for each in rows), rel=1e-4
    )


def test_two_processes_find_what_one_finds(decoder_of):
    tokenizer, rows, parts = copy.deepcopy(tiny.tokenizer()), dialogues(), []

    def keep(value):
        parts.append(value)
        return [value] if len(parts) < 2 else parts

    alone = likelihoods(decoder_of, tokenizer, rows, 48, batch_size=2)
    with suppress(IndexError, ValueError):  # the first process alone has not all of it
        likelihoods(decoder_of, tokenizer, rows, 48, batch_size=2, world=World(0, 2), gather=keep)
    both = likelihoods(decoder_of, tokenizer, rows, 48, batch_size=2, world=World(1, 2), gather=keep)
    assert both.columns["bits"].tolist() == alone.columns["bits"].tolist()


def test_rows_whose_answer_is_cut_away_are_not_counted(decoder_of):
    tokenizer = copy.deepcopy(tiny.tokenizer())
    long = Dialogue(
        ({"role": "user", "content": "cat " * 60}, {"role": "assistant", "content": "dog"}),
        (False, True),
        templated=False,
    )
    tally = likelihoods(decoder_of, tokenizer, [*dialogues(2), long], 48)
    assert tally.documents.tolist() == [0, 1]
