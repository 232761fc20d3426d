"""Which pretrained model is measured, under which names, and what is refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelines.core.errors import RecipeError
from pipelines.core.events import read_events
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.data.references import short_names as names
from tests import tiny

RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
"""
PRETRAIN = "stage: pretrain, id: words, datasets: [{path: train.txt}], block_size: 16"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("\n".join(tiny.TEXTS[:30]))
    (tmp_path / "held.txt").write_text("\n".join(tiny.TEXTS[30:]))
    return tmp_path


def recipe(folder: Path, *stages: str) -> Any:
    return loads(RECIPE + "\n".join(f"  - {{{stage}}}" for stage in stages), folder=folder)


def mistakes(folder: Path, *stages: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe(folder, *stages)
    return str(caught.value)


HELD = "stage: evaluate, datasets: [{path: held.txt}]"


def test_the_latest_pretrained_model_is_measured_or_the_one_that_from_names(folder: Path):
    made = recipe(
        folder, PRETRAIN, PRETRAIN.replace("words", "more"), "stage: supervised, task: builtin/python-docs", HELD
    )
    stage = made.stage("evaluate")
    assert stage.reads(made) == ("more",)
    assert stage.text_names(made) == ["held.txt"]
    assert set(stage.content(made)) == {"datasets[0].text", "more.datasets[0].text"}
    made = recipe(folder, PRETRAIN, PRETRAIN.replace("words", "more"), HELD + ", from: words")
    assert made.stage("evaluate").reads(made) == ("words",)


def test_benchmarks_and_texts_may_stand_together(folder: Path):
    task = "stage: supervised, id: docs, task: builtin/python-docs"
    made = recipe(folder, PRETRAIN, task, HELD + ", benchmarks: [docs]")
    assert made.stage("evaluate").reads(made) == ("docs", "words")
    made = recipe(folder, PRETRAIN, task, HELD)
    assert made.stage("evaluate").choices(made) == ([], [])


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            (HELD,),
            "datasets: measure the model of a pretrain stage, but no earlier stage is one; add {stage: pretrain, …} before it",
        ),
        (
            (PRETRAIN, "stage: supervised, id: docs, task: builtin/python-docs", HELD + ", from: docs"),
            "from: 'docs' is a 'supervised' stage, but 'datasets' measure what a model was pretrained to do, so it must come "
            "straight from a pretrain stage. Allowed: words",
        ),
        ((PRETRAIN, HELD + ", from: model"), "from: 'model' is the recipe's own model, but 'datasets' measure"),
        (
            (PRETRAIN, HELD + ", stride: 4"),
            "stride: moves the windows of causal_lm, but 'words' was trained with masked_lm; leave it out",
        ),
        (
            (PRETRAIN, "stage: evaluate, benchmarks: [glue/mrpc], stride: 4"),
            "stride: moves windows over held-out text, but no 'datasets'",
        ),
        ((PRETRAIN, HELD.replace("]", ", {path: held.txt}]")), "datasets[1]: '"),
        (
            (PRETRAIN, HELD + ", baselines: [majority]"),
            "baselines: are guessers for benchmarks, and only text is measured",
        ),
        ((PRETRAIN, "stage: evaluate, datasets: []"), "datasets: has 0 entries, must have at least 1"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(stages: tuple[str, ...], sentence: str, folder: Path):
    assert sentence in mistakes(folder, *stages)


def test_a_stride_beyond_the_block_would_leave_tokens_out(folder: Path):
    causal = PRETRAIN + ", objective: causal_lm"
    text = (
        RECIPE.replace("{preset: bert-tiny}", "{model_type: gpt2}") + f"  - {{{causal}}}\n  - {{{HELD}, stride: 17}}\n"
    )
    with pytest.raises(
        RecipeError,
        match="stride: is 17, must be at most 16, the block_size of 'words': windows would leave tokens out",
    ):
        loads(text, folder=folder)
    assert loads(text.replace("17", "16"), folder=folder).stage("evaluate").stride == 16


def reference(path: str, split: str = "validation", name: str | None = None, text: str = "text") -> Any:
    return SimpleNamespace(path=path, split=split, name=name, text=text)


def test_names_are_paths_with_what_tells_them_apart():
    assert names([reference("english_novels"), reference("/data/x/held.txt")]) == ["english_novels", "held.txt"]
    assert names([reference("a"), reference("a", "test"), reference("b")]) == ["a:validation", "a:test", "b"]
    assert names([reference("a", name="x"), reference("a", name="y")]) == ["a:validation:x", "a:validation:y"]
    assert names([reference("builtin/python-docs")], taken=["builtin/python-docs"]) == [
        "builtin/python-docs:validation"
    ]


def test_the_stage_leaves_figures_with_their_peers_and_says_its_doubts(folder: Path, context: Any):
    made = recipe(folder, PRETRAIN, HELD.replace("}]", "}, {path: train.txt}]") + ", max_eval_samples: 8")
    model = tiny.build("bert", Head("masked_lm"), seed=1)
    given = context(made, "evaluate", {"words": model}, open_tokenizer=tiny.tokenizer)
    made.stage("evaluate").run(given)
    metrics, details = (json.loads((given.folder / f"{name}.json").read_text()) for name in ("metrics", "details"))
    assert list(metrics) == ["held.txt", "train.txt"]
    assert list(metrics["held.txt"]) == [
        "hidden_bits_per_byte",
        "accuracy",
        "tokens",
        "bytes",
        "unigram_hidden_bits_per_byte",
        "bigram_hidden_bits_per_byte",
    ]
    about = details["held.txt"]
    assert (about["model"], about["objective"], about["block_size"], about["splits"]) == (
        "words",
        "masked_lm",
        16,
        {"": "train"},
    )
    assert about["baselines"]["bigram"] == {"hidden_bits_per_byte": metrics["held.txt"]["bigram_hidden_bits_per_byte"]}
    low, high = about["intervals"]["hidden_bits_per_byte"]
    assert low <= metrics["held.txt"]["hidden_bits_per_byte"] <= high
    assert [(each.stage_id, each.head.kind, each.trained_head) for each in given.opened] == [
        ("words", "masked_lm", True)
    ]
    warnings = [event["message"] for event in read_events(given.events.path) if event["event"] == "warning"]
    assert any("held.txt: not shown to be better than frequencies: hidden bits per byte" in each for each in warnings)
    assert any(
        "train.txt: the split 'train' is what 'words' was trained on, so it is not held out" in each
        for each in warnings
    )
    before = (given.folder / "metrics.json").read_bytes()
    torch.manual_seed(99)
    made.stage("evaluate").run(given)
    assert (given.folder / "metrics.json").read_bytes() == before
