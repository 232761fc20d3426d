from html.parser import HTMLParser

from pipelines.evaluation.resampling import Estimate
from pipelines.studies.page import page
from pipelines.studies.table import Figure, StudyRow


class Balanced(HTMLParser):
    """Counts what is open; remembers every address."""

    VOID = {"meta", "line", "circle", "polyline", "polygon", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def row(name, mean, share, reference=False):
    difference = None if reference else Estimate(-0.1, -0.15, -0.05)
    figure = Figure(mean, 0.01, (mean - 0.01, mean + 0.01), (mean - 0.02, mean + 0.02), difference)
    costs = {
        "trainable_parameters": share * 1000,
        "all_parameters": 1000.0,
        "train_runtime": 10 * share,
        "peak_memory_bytes": 1e8,
        "saved_bytes": share * 4000,
    }
    return StudyRow(
        {"method": name},
        name,
        "glue/mrpc",
        "evaluate",
        "mrpc",
        2,
        {"done": 2},
        figures={"accuracy": figure},
        costs=costs,
        is_reference=reference,
        curve=[(1, 1.0), (2, 0.5)],
    )


DATA = {
    "name": "a <b> study", "reference": "full", "compared": "method", "counts": {"done": 4, "failed": 1, "refused": 0, "stopped": 0, "queued": 0},
    "cells": [{"cell": "cells/05", "labels": {"method": "ia3"}, "status": "failed", "message": "<script>alert(1)</script>"}],
    "search": [{"labels": {"method": "full"}, "trials": [{"values": {"stages.a.arguments.learning_rate": 1e-3}, "rung": 1, "status": "done", "message": "", "metric": "loss", "score": 0.5, "chosen": True}]}],
}  # fmt: skip


def test_the_page_stands_alone_and_shows_every_plot_and_number():
    text = page(
        DATA,
        [
            row("full", 0.8, 1.0, True),
            row("lora", 0.7, 0.01),
            StudyRow({"method": "ia3"}, "ia3", expected=2, counts={"failed": 2}),
        ],
    )
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.addresses == []
    assert text.count("<svg") == 5  # scores; share, time and disk, as memory is the same for both; curves
    words = " ".join(parser.text)
    for told in (
        "0.800 ± 0.010",
        "-0.100 (-0.150 to -0.050)",
        "lora: worse than full",
        "learning_rate 0.001",
        "loss 0.500",
        "chosen",
        "4 of 5 cells are done; 1 failed.",
        "Highest accuracy: full, 0.800 ± 0.010; no other is better than it outside the noise. 1 of 3 rows lack seeds.",
        "glue/mrpc",
    ):
        assert told in words
    assert "<script>" not in text
    assert "<script>alert(1)</script>" in words


def test_a_page_without_any_result_is_a_page_too():
    parser = Balanced()
    parser.feed(page(DATA | {"search": []}, [StudyRow({"method": "ia3"}, "ia3", expected=2, counts={"queued": 2})]))
    assert parser.open == []
    assert "missing" in " ".join(parser.text)


def test_a_row_without_a_result_stands_in_the_plot_with_its_reason():
    text = page(
        DATA, [row("full", 0.8, 1.0, True), StudyRow({"method": "ia3"}, "ia3", expected=2, counts={"failed": 2})]
    )
    plot = text[text.index("<svg") : text.index("</svg>")]
    assert ">ia3</text>" in plot
    assert ">failed</text>" in plot


def test_the_best_stands_on_top_and_half_a_row_says_so():
    half = row("lora", 0.9, 0.01)
    half.counts = {"done": 1, "queued": 1}
    text = page(DATA, [row("full", 0.8, 1.0, True), half])
    plot = text[text.index("<svg") : text.index("</svg>")]
    assert plot.index(">lora</text>") < plot.index(">full</text>")
    assert "0.900 (1 of 2 seeds)" in plot


def test_the_search_is_drawn_with_its_winner_and_its_edge():
    def trial(value, score, chosen=False):
        return {
            "values": {"stages.a.arguments.learning_rate": value},
            "rung": 1,
            "status": "done",
            "message": "",
            "metric": "f1",
            "score": score,
            "chosen": chosen,
        }

    groups = [
        {
            "labels": {"method": name},
            "trials": [trial(1e-4, 0.4), trial(1e-3, 0.5 + at), trial(1e-2, 0.6 + at, True)],
            "grid": {"stages.a.arguments.learning_rate": [1e-4, 1e-3, 1e-2]},
            "edge": "learning_rate 0.01 is the largest that was tried, so a wider grid may do better" if at else "",
        }
        for at, name in enumerate(("full", "lora"))
    ]
    text = page(DATA | {"search": groups}, [row("full", 0.8, 1.0, True)])
    assert text.count('class="won"') == 2
    assert text.count('class="lost"') == 4
    assert "lora: learning_rate 0.01 is the largest that was tried" in text
    assert text.count('class="warn"') == 1


def test_a_matched_budget_is_said_and_its_steps_stand_in_the_table():
    one = row("full", 0.8, 1.0, True)
    one.budget, one.costs["train_steps"] = {"max_steps": None, "spent": 9.0}, 1234.0
    text = page(DATA | {"budget": {"sentence": "Every method trains 'a' for the same number of operations."}}, [one])
    assert "Every method trains &#39;a&#39; for the same number of operations." in text
    assert "<th>steps</th>" in text
    assert "<td>1,234</td>" in text


def test_seeds_lie_in_a_band_around_their_mean():
    one = row("full", 0.8, 1.0, True)
    one.band = [(1, 0.9, 1.1), (2, 0.4, 0.6)]
    assert 'class="band"' in page(DATA, [one])
    assert 'class="band"' not in page(DATA, [row("full", 0.8, 1.0, True)])


def test_rewards_stand_over_their_divergence():
    def policy(name, kl, reward):
        figures = {
            "reward": Figure(reward, 0.01, (reward - 0.1, reward + 0.1), None),
            "kl": Figure(kl, 0.1, (kl - 1, kl + 1), None),
            "reward_against": Figure(0.2, 0.0, (0.2, 0.2), None),
        }
        return StudyRow({"method": name}, name, "policy", "evaluate", name, 2, {"done": 2}, figures=figures)

    made = page(DATA, [policy("dpo", 4.0, 0.6), policy("ppo", 9.0, 0.8)])
    assert "Reward and KL divergence" in made
    assert "dpo: reward 0.6 at 4 nats, 2 seeds" in made
    assert "the model it is held against: reward 0.2" in made
    assert "Reward and KL divergence" not in page(DATA, [row("full", 0.9, 1.0, reference=True)])
