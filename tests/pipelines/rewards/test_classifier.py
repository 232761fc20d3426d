"""Scores of a classifier are those of each text read alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from pipelines.core.errors import ModelError
from pipelines.rewards.classifier import Classifier, label_score
from tests import tiny

PROMPTS = ["the film", "a", "a book was", "dog"]
COMPLETIONS = [" is good", " cat reads and the dog runs", "", " in the dull book it saw"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build("bert", tiny.THREE, initializer_range=0.5)


def alone(model: Any, text: str) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**tiny.tokenizer()(text, return_tensors="pt")).logits[0].double()
    return found


@pytest.mark.parametrize("output", ["probability", "log_probability", "logit"])
def test_scores_are_those_of_each_text_alone(model: Any, context: Callable[..., Any], output: str) -> None:
    given = context(model)
    scorer = Classifier.model_validate({"from": "judge", "label": "neutral", "output": output}).open(given)
    logits = torch.stack(
        [alone(model, prompt + completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    )
    probabilities = logits.softmax(-1)[:, 1]
    expected = {
        "probability": probabilities,
        "log_probability": probabilities.log(),
        "logit": (probabilities / (1 - probabilities)).log(),
    }
    assert scorer(PROMPTS, COMPLETIONS) == pytest.approx(expected[output].tolist(), abs=1e-5)
    assert given.asked == [
        ("sequence_classification", {"stage_id": "judge", "checkpoint": None, "trained_head": True}),
        ("judge", None),
    ]


def test_the_completion_alone(model: Any, context: Callable[..., Any]) -> None:
    scorer = Classifier.model_validate({"from": "judge", "label": "neutral", "reads": "completion"}).open(
        context(model)
    )
    assert scorer(PROMPTS[:2], COMPLETIONS[:2]) == pytest.approx(
        [alone(model, text).softmax(-1)[1].item() for text in COMPLETIONS[:2]], abs=1e-5
    )


def test_a_long_text_loses_its_beginning(model: Any, context: Callable[..., Any]) -> None:
    scorer = Classifier.model_validate({"from": "judge", "label": "neutral", "max_length": 8}).open(context(model))
    end = " ".join(tiny.WORDS[-6:])
    assert scorer([" ".join(tiny.WORDS[:-6])], [" " + end]) == pytest.approx(
        [alone(model, end).softmax(-1)[1].item()], abs=1e-5
    )
    assert tiny.tokenizer().truncation_side == "right"
    assert tiny.tokenizer().backend_tokenizer.truncation is None


def test_a_model_with_one_output_gives_its_number(context: Callable[..., Any]) -> None:
    model = tiny.build("bert", tiny.NUMBER, initializer_range=0.5)
    scorer = Classifier.model_validate({"from": "judge"}).open(context(model))
    assert scorer(["the film"], [" is good"]) == pytest.approx([alone(model, "the film is good")[0].item()], abs=1e-5)
    with pytest.raises(ModelError, match="no label 'good'"):
        Classifier.model_validate({"from": "judge", "label": "good"}).open(context(model))


def test_the_logit_does_not_saturate() -> None:
    logits = torch.tensor([[90.0, -90.0], [0.0, 0.0]])
    assert label_score(logits, 0, "logit").tolist() == [180.0, 0.0]
    assert label_score(logits, 0, "probability").tolist() == [1.0, 0.5]


def test_labels_that_are_not_there_are_told_with_those_that_are(model: Any, context: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match=r"no label 'neutrl'\. Did you mean 'neutral'"):
        Classifier.model_validate({"from": "judge", "label": "neutrl"}).open(context(model))
    with pytest.raises(ModelError, match="say which is rewarded: label: entailment"):
        Classifier.model_validate({"from": "judge"}).open(context(model))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label": "a"}, "neither was given"),
        ({"label": "a", "from": "x", "checkpoint": "a/b"}, "both were given"),
        ({"from": "x", "output": "logit"}, "of a 'label'"),
    ],
)
def test_keys_belong_together(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Classifier.model_validate(keys)
