"""What is written down of a judge, and when it is warned about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.data.prompts import PromptText
from pipelines.feedback import results
from pipelines.feedback.audit import audit_page
from pipelines.feedback.judges.judge import Spent, Verdict, both_orders
from pipelines.feedback.pairs import JudgedPrompt

PLAIN = PromptText("p")
SURE = both_orders(0.9, 0.8)
ASKED = [{"role": "user", "content": "Say something."}]


def judged(
    number: int = 0, verdict: Verdict = SURE, prompt: PromptText = PLAIN, texts: tuple[str, str] = ("long text", "x")
) -> JudgedPrompt:
    return JudgedPrompt(
        prompt,
        number,
        list(texts),
        [True, False],
        [verdict.probability, 1 - verdict.probability],
        {(0, 1): verdict},
        {(0, 1): "kind"},
    )


def stage(**settings: Any) -> Any:
    judge = SimpleNamespace(name="rule", identity=lambda: {"name": "rule"})
    return SimpleNamespace(
        **{"pairs": "best_worst", "by": "comparisons", "min_margin": 0.0, "judge": judge, **settings}
    )


def details(own: list[JudgedPrompt], **more: Any) -> dict[str, Any]:
    return results.details_of(
        own,
        results.preference_rows(own, stage(), "sft"),
        more.get("again", []),
        more.get("held", []),
        Spent(4, 100, 4, 0.5),
    )


def test_a_row_says_all_that_is_known_of_a_preference() -> None:
    (row,) = results.preference_rows([judged(7)], stage(), "sft")
    assert row == {
        "prompt": "p",
        "chosen": "long text",
        "rejected": "x",
        "score_chosen": pytest.approx(0.85),
        "score_rejected": pytest.approx(0.15),
        "margin": pytest.approx(0.7),
        "probability": pytest.approx(0.85),
        "order_consistent": True,
        "principle": "kind",
        "reason": None,
        "ended_chosen": True,
        "ended_rejected": False,
        "judge": "rule",
        "source": "sft",
        "row": 7,
    }
    assert results.preference_rows([judged()], stage(min_margin=0.8), "sft") == []


def test_messages_stay_messages() -> None:
    own = judged(prompt=PromptText("Say something.", ASKED))
    (row,) = results.preference_rows([own], stage(), "sft")
    assert row["prompt"] == ASKED
    assert row["chosen"] == [{"role": "assistant", "content": "long text"}]
    assert results.labelled_rows([own], "sft")[1]["completion"] == [{"role": "assistant", "content": "x"}]


def test_measures_are_plain_numbers_and_what_was_not_measured_is_left_out() -> None:
    found = results.metrics_of(details([judged(number) for number in range(5)]))
    assert all(isinstance(value, int | float) for value in found.values())
    assert found["preferences"] == 5
    assert found["order_consistency"] == 1.0
    assert found["position_bias"] == 0.5
    assert found["longer_wins"] == 1.0
    assert (found["questions"], found["prompt_tokens"], found["cost"]) == (4, 100, 0.5)
    assert not {"human_agreement", "self_consistency", "transitivity", "length_correlation"} & found.keys()


def test_troubles_are_told_and_a_good_judge_has_none() -> None:
    fair = [judged(number, texts=("long text", "x") if number % 2 else ("x", "long text")) for number in range(40)]
    assert results.warnings_of(details(fair)) == []
    assert "longer completion" in results.warnings_of(details([judged(number) for number in range(40)]))[0]
    silent = results.warnings_of(details([judged(number, Verdict(0.5, abstained=True)) for number in range(40)]))
    assert "abstained in 40 of 40" in silent[0]
    place = results.warnings_of(details([judged(number, both_orders(0.9, 0.2)) for number in range(40)]))
    assert any("in both orders in 0%" in each for each in place)
    assert any("shown first (100%" in each for each in place)


def test_agreement_and_saying_the_same_again() -> None:
    own = [judged(number) for number in range(4)]
    again = [
        {"at": at, "pair": [0, 1], "verdict": vars(both_orders(0.9, 0.7) if at else both_orders(0.1, 0.1))}
        for at in range(4)
    ]
    held = [{"verdict": vars(Verdict(0.9)), "first_is_better": at != 1} for at in range(4)]
    found = details(own, again=again, held=held)
    assert found["self_consistency"]["value"] == 0.75
    assert found["human_agreement"]["value"] == 0.75
    assert found["human_agreement"]["asked"] == 4


def test_the_page_shows_each_kind_of_example_escaped() -> None:
    own = [
        judged(0, both_orders(0.9, 0.2, "<i>so</i>")),
        judged(1),
        judged(2, Verdict(0.5, abstained=True), texts=("<script>x</script>", "b")),
    ]
    revised = [
        {
            "row": {
                "prompt": ASKED,
                "completion": "<b>new</b>",
                "original": "old",
                "critique": "bad",
                "principle": "kind",
            }
        },
        {"row": None},
    ]
    page = audit_page("run", "feedback", stage(), own, [{}], revised, details(own))
    for title in (
        "Where the judge is surest",
        "Where it is torn",
        "Where the order of showing decides",
        "Where it abstained",
        "Revisions",
    ):
        assert title in page
    for raw in ("<script>x", "<i>so", "<b>new"):
        assert raw not in page
    assert "&lt;b&gt;new" in page
