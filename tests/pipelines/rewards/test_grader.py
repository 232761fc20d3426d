"""A grader as the reward reads the row of each prompt, and asks models that are opened beside the policy."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.core.graders import as_tuples
from pipelines.core.interfaces import World
from pipelines.core.load import loads
from pipelines.data.prompts import Prompts
from pipelines.feedback.judges.judge import each_once
from pipelines.rewards.grader import GraderReward
from tests import tiny, writers

CHECK = {
    "type": "string_check", "name": "right", "input": "{{sample.output_text}}", "reference": "{{item.answer.text}}",
    "operation": "eq",
}  # fmt: skip
ROWS = [
    {"messages": [{"role": "user", "content": "the cat"}], "answer": {"text": "good"}},
    {"messages": [{"role": "user", "content": "the cat"}], "answer": {"text": "bad"}},
    {"messages": [{"role": "user", "content": "a dog"}], "answer": {"text": "fine"}},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Any:
    """The prompts of a file whose rows hold more than a prompt."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return Prompts(path=str(path)).read(tiny.tokenizer())


def block(grader: Any, **more: Any) -> GraderReward:
    return GraderReward.model_validate(as_tuples({"grader": grader, **more}))


def context(model: Any = None) -> Any:
    told: list[str] = []
    return SimpleNamespace(
        open_model=lambda head, **named: model,
        open_tokenizer=lambda stage_id=None, checkpoint=None: writers.tokenizer(),
        events=SimpleNamespace(emit=lambda kind, message: told.append(message)),
        world=World(),
        seed=0,
        told=told,
    )


def test_the_row_of_a_prompt_reaches_the_grader_also_where_two_rows_ask_the_same(prompts: Any) -> None:
    scorer = block(CHECK).open(context())
    answers = ["good", "good", "fine"]
    assert scorer(prompts.texts, answers) == [1.0, 0.0, 1.0]
    assert each_once(scorer, prompts.texts, answers) == [1.0, 0.0, 1.0]


def test_a_row_that_lacks_what_is_read_ends_the_stage_and_an_answer_that_does_is_told_once(prompts: Any) -> None:
    with pytest.raises(DataError, match=r"cannot read row 1 of the prompts: there is no item\.missing"):
        block(CHECK | {"reference": "{{item.missing}}"}).open(context())(prompts.texts[:1], ["x"])
    given = context()
    scorer = block(CHECK | {"input": "{{sample.output_json.a}}"}).open(given)
    assert scorer(prompts.texts, ["no", '{"a": "bad"}', "json"]) == [0.0, 1.0, 0.0]
    assert given.told == ["an answer cannot be graded: there is no sample.output_json.a"]


def test_a_judge_is_asked_once_for_all_rows_and_its_words_are_read(prompts: Any) -> None:
    label = {
        "type": "label_model", "name": "tone", "model": "J", "labels": ["good", "bad"], "passing_labels": ["good"],
        "input": [{"role": "user", "content": "{{sample.output_text}}"}],
    }  # fmt: skip
    models = [{"name": "J", "checkpoint": "a/judge"}]
    for said, score in (("good", 1.0), ("bad", 0.0)):
        assert (
            block(label, models=models).open(context(writers.saying(said)))(prompts.texts, ["the", "a", "it"])
            == [score] * 3
        )
    score = {**label, "type": "score_model", "range": [-1, 1]}
    del score["labels"], score["passing_labels"]
    given = context(writers.saying("good"))
    assert block(score, models=models).open(given)(prompts.texts, ["the", "a", "it"]) == [-1.0] * 3
    assert given.told == ["an answer cannot be graded: the model 'J' answered without a number"]
    long = context(writers.saying("good"))
    assert block(label, models=models).open(long)(prompts.texts[:1], ["the cat " * 40]) == [0.0]
    assert long.told == ["an answer cannot be graded: a question is longer than the model that grades can read"]


def test_the_cosine_is_that_of_the_models_vectors(prompts: Any) -> None:
    import torch

    grader = {
        "type": "text_similarity", "name": "near", "input": "{{sample.output_text}}", "reference": "{{item.answer.text}}",
        "evaluation_metric": "cosine", "model": "E",
    }  # fmt: skip
    encoder = writers.model("bert")
    scorer = block(grader, models=[{"name": "E", "checkpoint": "an/encoder"}]).open(context(encoder))
    found = scorer(prompts.texts, ["good", "the dull film", ""])
    vectors = []
    for text in ("the dull film", "bad"):
        inputs = writers.tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            vectors.append(encoder(**inputs, output_hidden_states=True).hidden_states[-1][0].mean(0))
    expected = float(torch.nn.functional.cosine_similarity(*vectors, dim=0))
    assert found == pytest.approx([1.0, max(0.0, expected), 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ("{name: grader, grader: {type: vibes}}", "reward.grader.type: is 'vibes'"),
        ("{name: grader, grader: {type: label_model, model: J, labels: [a], passing_labels: [a], input: [{role: user, "
         "content: x}]}}", "asks the model 'J', which 'models' does not hold. Add it: models: [{name: J"),
        ("{name: grader, grader: {type: text_similarity, input: a, reference: b, evaluation_metric: cosine}}",
         "does not say whose"),
        ("{name: grader, models: [{name: J, from: nothing}], grader: {type: string_check, input: a, reference: b, "
         "operation: eq}}", "reward.models[0].from: 'nothing' is no earlier stage"),
        ("{name: grader, models: [{name: J}], grader: {type: string_check, input: a, reference: b, operation: eq}}",
         "needs either 'from'"),
    ],
)  # fmt: skip
def test_a_recipe_is_told_what_is_wrong_with_its_grader(tmp_path: Path, reward: str, sentence: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
    with pytest.raises(Exception, match="stages") as refused:
        loads(
            "name: graded\nmodel: {checkpoint: some/model}\nstages:\n"
            f"  - {{stage: evaluate, from: model, prompts: {{path: rows.jsonl}}, reward: {reward}}}\n",
            folder=tmp_path,
        )
    assert sentence in str(refused.value)
