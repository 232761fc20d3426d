"""What the page says of a model's own completions."""

from pipelines.reports import run_page
from pipelines.reports.results import Scored

METRICS = {"reward": 0.31, "reward_against": 0.2, "win_rate": 0.625, "kl": 4.25}
ABOUT = {
    "model": "ppo",
    "intervals": {"win_rate": [0.55, 0.7], "reward": [0.28, 0.34]},
    "policy": {
        "against": "sft",
        "samples": [
            {
                "index": 3,
                "prompt": "<b>",
                "completion": "x" * 700,
                "score": 0.5,
                "against": " bad",
                "score_against": 0.0,
            }
        ],
    },
}


def test_the_sentence_says_who_wins_and_how_far_it_went():
    told = run_page.sentence(Scored("policy", "evaluate", METRICS, ABOUT))
    assert told == (
        "Its completions score higher than those of 'sft' for 62.5% of the prompts, ties counted half (95 %: 55.0% – 70.0%); "
        "rewards 0.31 against 0.2, at a KL divergence of 4.25 nats a completion."
    )
    unsure = Scored("policy", "evaluate", METRICS, ABOUT | {"intervals": {"win_rate": [0.45, 0.7]}})
    assert "which may be chance" in run_page.sentence(unsure)


def test_without_another_model_there_is_no_sentence():
    alone = Scored("policy", "evaluate", {"reward": 0.3}, {"policy": {"against": None, "samples": []}})
    assert run_page.sentence(alone) == ""
    assert "0.3" in run_page.plot(alone, "ppo")
    other = Scored("glue/rte", "evaluate", {"accuracy": 0.3}, {})
    assert (run_page.of(other), run_page.sentence(other), run_page.samples(other)) == (None, "", [])


def test_samples_are_shortened_and_both_models_are_drawn():
    scored = Scored("policy", "evaluate", METRICS, ABOUT)
    [sample] = run_page.samples(scored)
    assert sample["own"].endswith(" …")
    assert len(sample["own"]) == run_page.LONGEST_REPORT_POLICY + 2
    assert (sample["score"], sample["score_against"], sample["other"], sample["index"]) == ("0.5", "0", " bad", "3")
    drawn = run_page.plot(scored, "ppo")
    assert "ppo" in drawn
    assert "sft" in drawn
