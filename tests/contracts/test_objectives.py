"""What every pretraining objective must do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from pipelines.blocks import Block
from pipelines.data.wordpiece import WordPiece
from pipelines.protocols import Head
from pipelines.registry import OBJECTIVES

IGNORED = -100


@pytest.fixture(params=list(OBJECTIVES))
def objective(request: pytest.FixtureRequest) -> Any:
    return OBJECTIVES.load(request.param)(name=request.param)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece().train(["the cat sat on the mat and the dog looked at it for a while"] * 3, 90)


@pytest.fixture
def examples(tokenizer: Any) -> list[dict[str, Any]]:
    texts = ["the cat sat on the mat", "a dog", "the dog looked at the cat for a while and the cat looked at it"] * 10
    return [{"input_ids": ids, "draw": draw} for draw, ids in enumerate(tokenizer(texts)["input_ids"])]


def test_it_is_a_block_with_a_head(objective: Any):
    assert isinstance(objective, Block)
    assert isinstance(objective.head, Head)


def test_a_batch_has_padded_ids_a_mask_and_labels_of_one_shape(objective: Any, tokenizer: Any, examples: list[dict[str, Any]]):
    batch = objective.collate(tokenizer, seed=0)(examples)
    lengths = [len(example["input_ids"]) for example in examples]
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (len(examples), max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert (batch["input_ids"][batch["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    assert (batch["labels"] != IGNORED).any(1).all()
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORED).all()


def test_seed_and_draw_decide_alone(objective: Any, tokenizer: Any, examples: list[dict[str, Any]]):
    batch = objective.collate(tokenizer, seed=0)(examples)
    torch.manual_seed(123)
    again = objective.collate(tokenizer, seed=0)(examples[::-1])
    for key, value in batch.items():
        assert torch.equal(again[key].flip(0), value)


def test_another_epoch_or_seed_asks_something_else(objective: Any, tokenizer: Any, examples: list[dict[str, Any]]):
    labels = objective.collate(tokenizer, seed=0)(examples)["labels"]
    later = [example | {"draw": example["draw"] + len(examples)} for example in examples]
    assert not torch.equal(objective.collate(tokenizer, seed=0)(later)["labels"], labels)
    assert not torch.equal(objective.collate(tokenizer, seed=1)(examples)["labels"], labels)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_it_is_checked_without_any_heavy_library(name: str):
    heavy = ("torch", "transformers", "numpy")
    code = f"import sys, {OBJECTIVES.module(name)}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_key_is_explained(objective: Any):
    assert all(field.description for key, field in type(objective).model_fields.items() if key != "name")
