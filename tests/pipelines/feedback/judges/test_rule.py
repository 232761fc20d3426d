"""The rule judge says what its reward says, and errs as often as it is told to."""

from __future__ import annotations

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.feedback.judges.judge import Judge
from pipelines.feedback.judges.rule import RuleJudge, RuleJudgeBlock
from pipelines.feedback.results import position_bias

COUNT = 3000
PROMPTS = [f"prompt {number}" for number in range(COUNT)]
GOOD, BAD = ["a good film"] * COUNT, ["a film"] * COUNT


def judge(**settings: object) -> Judge:
    block = RuleJudgeBlock.model_validate(
        {"name": "rule", "prefer": {"name": "keyword", "words": ("good",)}, **settings}
    )
    return block.open(None)  # type: ignore[arg-type]


def test_without_noise_it_is_the_reward() -> None:
    found = judge().compare(["p", "p", "p"], ["good", "bad", "bad"], ["bad", "good", "worse"])
    assert [each.probability for each in found] == [1.0, 0.0, 0.5]
    assert [each.decided for each in found] == [True, True, False]
    assert [each.consistent for each in found] == [True, True, None]
    assert judge().scores(["p"], ["good film"]) == [0.5]


def test_the_noise_is_as_large_as_it_says() -> None:
    found = judge(noise=0.2).compare(PROMPTS, GOOD, BAD)
    wrong = sum(each.probability == 0.0 for each in found) / COUNT
    assert wrong == pytest.approx(0.2, abs=0.025)
    assert all(each.consistent for each in found)
    turned = judge(noise=0.2).compare(PROMPTS, BAD, GOOD)
    assert [1 - each.probability for each in turned] == [each.probability for each in found]


def test_the_liking_for_the_first_place_is_as_large_as_it_says() -> None:
    found = position_bias(judge(position_bias=0.4).compare(PROMPTS, GOOD, BAD))
    assert found["value"] == pytest.approx(0.5 + 0.4 / 2, abs=0.02)


def test_what_it_says_depends_on_seed_and_texts_alone() -> None:
    whole = judge(noise=0.5).compare(PROMPTS, GOOD, BAD)
    parts = [
        each
        for start in (0, 1000, 2000)
        for each in judge(noise=0.5).compare(PROMPTS[start : start + 1000], GOOD[:1000], BAD[:1000])
    ]
    assert parts == whole
    assert judge(noise=0.5, seed=1).compare(PROMPTS, GOOD, BAD) != whole


def test_equal_completions_are_scored_once() -> None:
    one = judge()
    assert isinstance(one, RuleJudge)
    seen: list[int] = []
    scorer = one.scorer

    def count(prompts: object, completions: object) -> list[float]:
        seen.append(len(prompts))  # type: ignore[arg-type]
        return scorer(prompts, completions)  # type: ignore[arg-type]

    one.scorer = count  # type: ignore[assignment]
    one.compare(["p"] * 3, ["a", "a", "b"], ["b", "c", "c"])
    assert seen == [3]


def test_the_mistakes_of_its_reward_are_told_at_their_place() -> None:
    text = """\
name: x
model: {checkpoint: some/model}
stages:
  - {stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: rule, prefer: {from: nowhere}}}
"""
    with pytest.raises(RecipeError, match=r"judge\.prefer\.from: 'nowhere' is no stage"):
        loads(text)
