"""A reward model scores a completion as the stage that trained it reads one, whatever stands beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.prompts import PromptText
from pipelines.data.reward_inputs import RewardCollator, RewardInputFormat, RewardSettings, encode_scored
from pipelines.rewards.model import RewardModel
from tests import tiny

PROMPTS = ["the film", "a", "a book was", "dog"]
COMPLETIONS = [" is good", " cat reads and the dog runs", "", " in the dull book it saw"]


def scored(family: str, tokenizer: Any = None) -> Any:
    return tiny.build("finery", Head("reward"), family=family, initializer_range=0.5).eval()


def alone(model: Any, tokenizer: Any, dialogue: Dialogue, reading: RewardInputFormat) -> float:
    rows = encode_scored(tokenizer, [dialogue], reading)
    with torch.no_grad():
        return float(model(**RewardCollator.of(tokenizer)([rows[0]])).logits[0, 0])


@pytest.mark.parametrize(("family", "reads"), [("decoder", "text"), ("encoder", "pair"), ("encoder-decoder", "pair")])
def test_scores_are_those_of_each_pair_alone(
    context: Callable[..., Any], tmp_path: Path, family: str, reads: Any
) -> None:
    model, reading = scored(family), RewardInputFormat(reads, 30)
    (tmp_path / "model").mkdir()
    RewardSettings(reading, 0.5, 2.0).write(tmp_path / "model", {})
    found = RewardModel.model_validate({"from": "judge"}).open(context(model))(PROMPTS, COMPLETIONS)
    expected = [alone(model, tiny.tokenizer(), each, reading) for each in reading.dialogues(PROMPTS, COMPLETIONS)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) == len(found)
    normal = RewardModel.model_validate({"from": "judge", "normalize": True}).open(context(model))(PROMPTS, COMPLETIONS)
    assert normal == pytest.approx([(score - 0.5) / 2.0 for score in found])


def test_prompts_keep_their_messages_for_the_models_own_template(context: Callable[..., Any], tmp_path: Path) -> None:
    model, tokenizer, reading = (
        scored("decoder"),
        copy.deepcopy(tiny.tokenizer()),
        RewardInputFormat("text", 48, templated=True),
    )
    tokenizer.chat_template = TEMPLATES["simple"]
    (tmp_path / "model").mkdir()
    RewardSettings(reading).write(tmp_path / "model", {})
    messages = [
        {"role": "user", "content": "good ?"},
        {"role": "assistant", "content": "fine"},
        {"role": "user", "content": "very ?"},
    ]
    found = RewardModel.model_validate({"from": "judge"}).open(context(model, tokenizer))(
        [PromptText("good ? fine very ?", messages), "good ?"], ["yes", "no"]
    )
    asked = [
        Dialogue((*messages, {"role": "assistant", "content": "yes"}), (False, False, False, True)),
        *reading.dialogues(["good ?"], ["no"]),
    ]
    assert found == pytest.approx([alone(model, tokenizer, each, reading) for each in asked], abs=1e-5)


def test_a_model_from_elsewhere_is_read_as_its_family_would_be(context: Callable[..., Any], tmp_path: Path) -> None:
    model = scored("decoder")
    block = RewardModel.model_validate({"checkpoint": str(tmp_path)})
    assert block.open(context(model))(PROMPTS, COMPLETIONS) == pytest.approx(
        [
            alone(model, tiny.tokenizer(), each, RewardInputFormat("text", 48))
            for each in RewardInputFormat("text", 48).dialogues(PROMPTS, COMPLETIONS)
        ],
        abs=1e-5,
    )
    assert set(block.content()) == {"checkpoint"}
    with pytest.raises(ModelError, match=r"no reward\.json"):
        RewardModel.model_validate({"checkpoint": str(tmp_path), "normalize": True}).open(context(model))


def test_a_classifier_and_damaged_weights_are_refused(context: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 3 outputs and is a classifier; write"):
        RewardModel.model_validate({"checkpoint": str(tmp_path)}).open(context(tiny.build("bert", tiny.THREE)))
    model = scored("encoder")
    torch.nn.init.constant_(model.classifier.weight, float("nan"))
    with pytest.raises(ModelError, match="the score nan"):
        RewardModel.model_validate({"checkpoint": str(tmp_path)}).open(context(model))(["a"], ["b"])


def test_one_place_is_named() -> None:
    for keys in ({}, {"from": "a", "checkpoint": "b/c"}):
        with pytest.raises(ValidationError, match="needs either 'from'"):
            RewardModel.model_validate(keys)
