"""What the page says of a model's own completions."""

from pipelines import report_policy
from pipelines.run_results import Scored

METRICS = {"reward": 0.31, "reward_against": 0.2, "win_rate": 0.625, "kl": 4.25}
ABOUT = {
    "model": "ppo", "intervals": {"win_rate": [0.55, 0.7], "reward": [0.28, 0.34]},
    "policy": {"against": "sft", "samples": [{"index": 3, "prompt": "<b>", "completion": "x" * 700, "score": 0.5, "against": " bad", "score_against": 0.0}]},
}


def test_the_sentence_says_who_wins_and_how_far_it_went():
    told = report_policy.sentence(Scored("policy", "evaluate", METRICS, ABOUT))
    assert told == (
        "Its completions score higher than those of 'sft' for 62.5% of the prompts, ties counted half (95 %: 55.0% – 70.0%); "
        "rewards 0.31 against 0.2, at a KL divergence of 4.25 nats a completion."
    )
    unsure = Scored("policy", "evaluate", METRICS, ABOUT | {"intervals": {"win_rate": [0.45, 0.7]}})
    assert "which may be chance" in report_policy.sentence(unsure)


def test_without_another_model_there_is_no_sentence():
    alone = Scored("policy", "evaluate", {"reward": 0.3}, {"policy": {"against": None, "samples": []}})
    assert report_policy.sentence(alone) == ""
    assert "0.3" in report_policy.plot(alone, "ppo")
    other = Scored("glue/rte", "evaluate", {"accuracy": 0.3}, {})
    assert (report_policy.of(other), report_policy.sentence(other), report_policy.samples(other)) == (None, "", [])


def test_samples_are_shortened_and_both_models_are_drawn():
    scored = Scored("policy", "evaluate", METRICS, ABOUT)
    [sample] = report_policy.samples(scored)
    assert sample["own"].endswith(" …")
    assert len(sample["own"]) == report_policy.LONGEST + 2
    assert (sample["score"], sample["score_against"], sample["other"], sample["index"]) == ("0.5", "0", " bad", "3")
    drawn = report_policy.plot(scored, "ppo")
    assert "ppo" in drawn
    assert "sft" in drawn
