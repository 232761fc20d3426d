"""Answers that nobody has judged: rows in each way, scores as of each answer alone, and what people are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.commands.predict import answer
from pipelines.core.errors import CommandError, DataError
from pipelines.core.interfaces import Head
from pipelines.core.presentation import Bars, Number
from pipelines.data.reward_inputs import RewardCollator, RewardInputFormat, RewardSettings, encode_scored
from pipelines.serving.predictions import Predictor
from tests import tiny

READS = {"decoder": RewardInputFormat("text", 24), "encoder": RewardInputFormat("pair", 24)}
PROMPT, ANSWERS = "the cat", [" runs and reads", " is bad", " a dog saw it"]


@pytest.fixture(scope="module", params=list(READS))
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, RewardInputFormat]:
    """A published reward model: its folder, the model, and how it reads."""
    folder, reading = tmp_path_factory.mktemp(request.param) / "model", READS[request.param]
    made = tiny.build("finery", Head("reward"), family=request.param, initializer_range=0.5).eval()
    made.save_pretrained(str(folder))
    tiny.tokenizer().save_pretrained(str(folder))
    RewardSettings(reading).write(folder, {})
    return folder, made, reading


def alone(model: Any, reading: RewardInputFormat, prompt: str, completion: str) -> float:
    rows = encode_scored(tiny.tokenizer(), reading.dialogues([prompt], [completion]), reading)
    with torch.no_grad():
        return float(model(**RewardCollator.of(tiny.tokenizer())([rows[0]])).logits[0, 0])


def predicted(folder: Path, *rows: Any, **asked: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    place = folder.parent / "rows.jsonl"
    place.write_text("\n".join(map(json.dumps, rows)) + "\n")
    out = folder.parent / "out.jsonl"
    told = answer({"model": str(folder), "data": str(place), "out": str(out), **asked})
    return [json.loads(line) for line in out.read_text().splitlines()], told


def test_each_way_to_write_answers_has_their_scores(model: tuple[Path, Any, RewardInputFormat]) -> None:
    folder, made, reading = model
    expected = [alone(made, reading, PROMPT, each) for each in ANSWERS]
    (several,), _ = predicted(folder, {"prompt": PROMPT, "completions": ANSWERS})
    assert several["scores"] == pytest.approx(expected, abs=1e-5)
    assert several["prediction"] == max(range(3), key=expected.__getitem__)
    assert several["probabilities"] == pytest.approx(torch.tensor(expected).softmax(0).tolist(), abs=1e-5)
    ones, _ = predicted(folder, *({"prompt": PROMPT, "completion": each, "label": True} for each in ANSWERS))
    assert [each["prediction"] for each in ones] == pytest.approx(expected, abs=1e-5)
    (pair,), told = predicted(folder, {"prompt": PROMPT, "chosen": ANSWERS[0], "rejected": ANSWERS[1]})
    assert [pair["score_chosen"], pair["score_rejected"]] == pytest.approx(expected[:2], abs=1e-5)
    assert pair["prediction"] == ("chosen" if expected[0] >= expected[1] else "rejected")
    assert pair["probability"] == pytest.approx(1 / (1 + torch.tensor(-abs(expected[0] - expected[1])).exp().item()))
    assert told["warnings"] == []


def test_rows_of_messages_are_read_as_well(model: tuple[Path, Any, RewardInputFormat]) -> None:
    folder, _, _ = model
    user, told = {"role": "user", "content": "the cat"}, {"role": "assistant", "content": "runs"}
    rows, _ = predicted(folder, {"chosen": [user, told], "rejected": [user, {**told, "content": "sleeps"}]})
    assert (rows[0]["text"], rows[0]["chosen"], rows[0]["rejected"]) == ("the cat", "runs", "sleeps")


def test_what_is_cut_is_said(model: tuple[Path, Any, RewardInputFormat]) -> None:
    _, told = predicted(
        model[0], {"prompt": "the cat " * 30, "completion": " runs"}, {"prompt": "a", "completion": "b"}
    )
    assert told["warnings"][0].startswith("1 of 2 answers are longer with their prompt than what the model reads")


EITHER = pytest.mark.parametrize("model", ["decoder", pytest.param("encoder", marks=pytest.mark.long)], indirect=True)
"""For what is refused before it matters how a model reads."""


@EITHER
@pytest.mark.parametrize(
    ("row", "asked", "error", "sentence"),
    [
        ({"text": "a"}, {}, DataError, "has the columns text, and a reward model reads prompt, completions; or prompt"),
        ({"prompt": "a"}, {}, DataError, "has the columns prompt, and a reward model reads"),
        ({"prompt": "a", "completions": "b"}, {}, DataError, r"row 1 .* holds 'b' in .* must be a list of answers"),
        ({"prompt": "a", "completions": []}, {}, DataError, "must be a list of answers"),
        ({"prompt": "a", "completion": " "}, {}, DataError, "has an empty answer in the column 'completion'; correct"),
        ({"prompt": " ", "completion": "b"}, {}, DataError, "has an empty prompt"),
        ({"prompt": "a", "completion": 3}, {}, DataError, "holds '3' .* must be a text"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, {}, DataError, "has the same text as chosen and as rejected"),
        ({"x": "a"}, {"text": ["x"]}, CommandError, "--text cannot name the columns that this model reads; call them"),
        ({"text": "a"}, {"text": ["text"], "plain": True}, DataError, "an input of this model is prompt and compl"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(model: tuple[Path, Any, Any], row, asked, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        predicted(model[0], row, **asked)


def test_a_served_one_has_a_form_and_answers_each_way(model: tuple[Path, Any, RewardInputFormat]) -> None:
    folder, made, reading = model
    predictor = Predictor(str(folder))
    predictor.warm()
    form = predictor.form()
    assert [(field.name, field.control, field.low, field.high) for field in form.fields] == [
        ("prompt", "text", None, None),
        ("completions", "texts", 2, 4),
    ]
    expected = [alone(made, reading, PROMPT, each) for each in ANSWERS]
    (found,), _ = predictor.predict([{"prompt": PROMPT, "completions": ANSWERS}])
    assert found.keys() == {"index", "prediction", "scores", "probabilities"}
    assert found["scores"] == pytest.approx(expected, abs=1e-5)
    pair = {"prompt": PROMPT, "chosen": ANSWERS[0], "rejected": ANSWERS[1]}
    (found,), _ = predictor.predict([pair])
    assert found.keys() == {"index", "prediction", "probability", "score_chosen", "score_rejected"}
    bars, note = predictor.shown({"prompt": PROMPT, "completions": ANSWERS}).parts
    assert isinstance(bars, Bars)
    assert [bar.text for bar in bars.bars] == ANSWERS
    assert [bar.share for bar in bars.bars] == pytest.approx(torch.tensor(expected).softmax(0).tolist(), abs=1e-5)
    assert [bar.chosen for bar in bars.bars] == [score == max(expected) for score in expected]
    assert "no scale of its own" in note.text  # type: ignore[union-attr]
    one = predictor.shown({"prompt": PROMPT, "completion": ANSWERS[0]}).parts[0]
    assert isinstance(one, Number)
    assert one.value == pytest.approx(expected[0], abs=1e-5)


@EITHER
@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (
            ["the cat"],
            "input 0 must be an object with 'prompt' and 'completions', or with 'prompt' and 'completion', or",
        ),
        ([{"prompt": "a"}], "input 0 has no 'completions'; an object with"),
        ([{"prompt": "a", "completion": "b", "x": "c"}], "input 0 has an unknown key 'x'"),
        (
            [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completions": ["b"]}],
            "some inputs have other keys than others; ask for them apart",
        ),
        ([{"prompt": "a", "completion": ""}], "^the list of inputs, row 1 .* has an empty answer"),
    ],
)
def test_what_a_served_one_cannot_read_is_one_sentence(model: tuple[Path, Any, Any], inputs, sentence) -> None:
    with pytest.raises((CommandError, DataError), match=sentence):
        Predictor(str(model[0])).predict(inputs)
