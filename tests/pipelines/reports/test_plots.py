"""Plots: scales with round ticks, and every mark at the place that its numbers say."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from xml.etree import ElementTree

import pytest

from pipelines.reports.plots import (
    Curve,
    Dot,
    Point,
    PolicyScores,
    Scale,
    SearchedValue,
    SearchedValues,
    confusion_matrix,
    dot_plot,
    free_places,
    frontier,
    histograms,
    lines,
    pareto,
    reliability,
    scatter,
    search,
    seen,
    short,
)

SVG = "{http://www.w3.org/2000/svg}"


def parse(text):
    return ET.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_the_front_holds_what_nothing_cheaper_equals():
    # (cost, score): b costs more than a and is worse; c costs more and is better; d equals c and costs more
    points = [(1.0, 0.7), (2.0, 0.6), (3.0, 0.8), (4.0, 0.8), (5.0, 0.9)]
    assert pareto(points) == [0, 2, 4]
    assert pareto(points, larger_is_better=False) == [0, 1]


def test_the_front_agrees_with_its_definition_on_random_points():
    import random

    random.seed(1)
    points = [(random.randint(1, 9), random.randint(1, 9)) for _ in range(40)]
    on = {points[at] for at in pareto(points)}
    for cost, score in points:
        beaten = any((c <= cost and s >= score and (c, s) != (cost, score)) for c, s in points)
        assert ((cost, score) in on) == (not beaten)


def test_a_scale_is_linear_or_logarithmic_and_its_ticks_are_round():
    linear = Scale([0.0, 10.0], 0, 100)
    assert linear(5.0) == 50.0
    assert linear.ticks() == [0, 2, 4, 6, 8, 10]
    logarithmic = Scale([1.0, 1000.0], 0, 100, log=True)
    assert logarithmic(10**1.5) == 50.0
    assert logarithmic.ticks() == [1, 10, 100, 1000]


def test_a_single_value_has_a_scale_too():
    assert math.isfinite(Scale([0.5], 0, 100)(0.5))
    assert Scale([0.0], 0, 100).ticks()


def test_a_dot_stands_where_its_value_is_and_its_interval_around_it():
    root = parse(
        dot_plot(
            [Dot("full", 0.8, 0.7, 0.9, (0.79, 0.81), "reference"), Dot("lo<ra", 0.6, 0.5, 0.7, kind="worse")],
            "accuracy",
        )
    )
    groups = list(root.iter(f"{SVG}g"))
    assert [group.get("class") for group in groups] == ["reference", "worse"]
    mean = [float(group.findall(f"{SVG}circle[@class='mean']")[0].get("cx")) for group in groups]
    interval = [group.find(f"{SVG}line") for group in groups]
    assert float(interval[0].get("x1")) < mean[0] < float(interval[0].get("x2"))
    assert mean[0] > mean[1]
    assert len(groups[0].findall(f"{SVG}circle[@class='seed']")) == 2
    assert "lo<ra" in [text.text for text in root.iter(f"{SVG}text")]


def test_a_scatter_draws_the_front_through_its_points():
    root = parse(
        scatter([Point("full", 100.0, 0.9), Point("lora", 1.0, 0.8), Point("bad", 50.0, 0.7)], "share", "accuracy")
    )
    [front] = [line for line in root.iter(f"{SVG}polyline") if line.get("class") == "front"]
    assert len(front.get("points").split()) == 2
    assert [group.get("class") for group in root.iter(f"{SVG}g")] == ["on-front", "on-front", "off-front"]


def test_lines_keep_their_names_apart():
    root = parse(lines([Curve("a", [(1, 1.0), (2, 0.5)]), Curve("b", [(1, 1.0), (2, 0.5)])], "step", "loss"))
    names = [text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert abs(float(names[0].get("y")) - float(names[1].get("y"))) >= 13


def test_many_lines_keep_their_names_apart_and_inside():
    root = parse(lines([Curve(str(at), [(1, 1.0), (2, 0.01)]) for at in range(9)], "step", "loss"))
    heights = sorted(float(text.get("y")) for text in root.iter(f"{SVG}text") if text.get("class") == "name")
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 13.9
    assert heights[-1] <= float(root.get("viewBox").split()[3]) - 40
    kinds = [group.get("class") for group in root.iter(f"{SVG}g")]
    assert (kinds[0], kinds[8]) == ("s0", "s0 again")  # the ninth is no second first


def test_one_wide_interval_does_not_press_the_others_together():
    # values 0.6 to 0.8 are half of what is shown: 0.1 more on each side
    assert seen([0.6, 0.8], [(0.0, 1.0), (0.75, 0.85)]) == pytest.approx([0.6, 0.8, 0.5, 0.9, 0.75, 0.85])
    assert seen([0.6], [(0.5, 0.65)]) == pytest.approx([0.6, 0.5, 0.65])  # a value alone leaves its interval whole
    root = parse(dot_plot([Dot("a", 0.8, 0.0, 1.0), Dot("b", 0.6, 0.55, 0.65)], "accuracy"))
    wide, narrow = root.iter(f"{SVG}g")
    assert len(wide.findall(f"{SVG}polygon")) == 2  # arrows: it goes on
    assert len(narrow.findall(f"{SVG}polygon")) == 0


def test_names_of_points_in_a_heap_do_not_cover_each_other():
    found = free_places([(100, 100), (102, 101), (104, 99), (101, 98)], [40.0] * 4, (0, 0, 300, 300))
    boxes = [(x, y - 10, x + 40, y + 2) for x, y in found]
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    [(x, _)] = free_places([(295, 100)], [40.0], (0, 0, 300, 300))
    assert x + 40 <= 300


def test_costs_that_lie_near_each_other_have_ticks_too():
    assert len(Scale([8e8, 1.6e9], 0, 100, log=True).ticks()) >= 3


def test_a_unit_stands_behind_a_tick():
    assert (short(2.2e7, "B"), short(1500.0, "s"), short(0.1, "%")) == ("22 MB", "1500 s", "0.1 %")


@pytest.mark.parametrize(
    ("value", "text"), [(0.82, "0.82"), (1500.0, "1.5k"), (22e6, "22M"), (0.30000000000000004, "0.3")]
)
def test_ticks_are_short(value, text):
    assert short(value) == text


METHODS = [
    PolicyScores("dpo", ((4.0, 1.0), (6.0, 3.0))),
    PolicyScores("ppo <1>", ((10.0, 4.0), (12.0, 6.0))),
    PolicyScores("worse", ((20.0, 1.0),)),
]


def test_means_rings_and_the_first_model_are_drawn():
    picture = ElementTree.fromstring(frontier(METHODS, start=0.5))
    circles = [each.get("class") for each in picture.iter("circle")]
    assert circles.count("seed") == 4  # one seed alone has no ring of its own
    assert circles.count("mean") == 4
    told = [each.text for each in picture.iter("title")]
    assert told == [
        "dpo: reward 2 at 5 nats, 2 seeds",
        "ppo <1>: reward 5 at 11 nats, 2 seeds",
        "worse: reward 1 at 20 nats, 1 seed",
        "the model it is held against: reward 0.5",
    ]


def test_the_line_joins_what_no_other_beats():
    drawn = frontier(METHODS, start=0.5)
    [points] = re.findall(r'<polyline class="front" points="([^"]*)"', drawn)
    assert len(points.split()) == 3  # the first model, dpo, ppo
    kinds = re.findall(r'<g class="(on|off)-front"', drawn)
    assert kinds == ["on", "on", "off"]


def test_a_single_method_stands_alone():
    assert "polyline" not in frontier(METHODS[:1])


def test_values_stand_in_order_and_the_winner_is_filled():
    text = search(
        [
            SearchedValues(
                "lora <r>",
                [SearchedValue(1e-2, 0.5, False), SearchedValue(1e-4, 0.6, True), SearchedValue(1e-3, 0.7, False)],
            )
        ],
        "learning_rate",
        "f1",
    )
    places = [float(part.split('"')[0]) for part in text.split('cx="')[1:]]
    assert places == sorted(places)
    assert abs((places[1] - places[0]) - (places[2] - places[1])) < 0.2  # equal factors, equal distances
    assert text.index('class="won"') < text.index('class="lost"')
    assert "lora &lt;r&gt;: learning_rate 0.0001, f1 0.6" in text


def test_one_value_alone_can_be_drawn():
    assert "<circle" in search([SearchedValues("full", [SearchedValue(0.1, 0.5, True)])], "rate", "loss")


def test_a_bar_ends_at_the_accuracy_and_the_gap_reaches_to_the_confidence():
    text = reliability([{"low": 0.8, "high": 1.0, "examples": 10, "confidence": 0.9, "accuracy": 0.5}], "a picture")
    bar, gap = re.findall(
        r'<rect class="(?:bar|gap)" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)"(?: height="([\d.]+)")', text
    )
    # a square of 300, 52 from the left and 10 from the top
    assert (float(bar[0]), float(bar[1])) == (52 + 0.8 * 300 + 1, 0.2 * 300 - 2)
    assert (float(bar[2]), float(bar[3])) == (10 + 150, 150)
    assert (float(gap[2]), round(float(gap[3]), 6)) == (10 + 30, 120)
    assert "confidence 0.90, right 0.50, 10 decisions" in text


def test_without_any_bin_it_is_an_empty_frame():
    assert "rect" not in reliability([], "nothing")


def test_every_count_stands_in_its_cell_and_the_shade_is_the_share_of_the_row():
    text = confusion_matrix(["cat", "dog <x>"], [[3, 1], [0, 0]])
    assert text.count("<rect") == 8
    assert "cat taken for dog &lt;x&gt;: 1 of 4 (25.0%)" in text
    assert 'fill-opacity="0.675"' in text  # 0.9 times three quarters
    assert text.count(">0</text>") == 2
    assert text.index(">3</text>") < text.index(">1</text>")


def test_more_classes_than_can_be_read_have_no_picture():
    names = [f"class {at}" for at in range(15)]
    assert confusion_matrix(names, [[1] * 15] * 15) == ""
    assert confusion_matrix([], []) == ""
    assert confusion_matrix(names[:14], [[1] * 14] * 14).count("<rect") == 2 * 14 * 14


HISTOGRAM = {"edges": [-1.0, 0.0, 1.0], "chosen": [0, 4], "rejected": [2, 1]}


def test_a_bar_for_each_side_and_bin_that_has_answers():
    text = histograms(HISTOGRAM, "a picture")
    bars = re.findall(r"<title>([^<]+)</title>", text)
    assert bars == ["4 chosen from 0 to 1", "2 rejected from -1 to 0", "1 rejected from 0 to 1"]
    heights = [float(height) for height in re.findall(r'height="([\d.]+)" fill-opacity', text)]
    assert heights[0] > heights[1] > heights[2] > 0
    assert 'aria-label="a picture"' in text


def test_nothing_is_no_bar():
    assert "rect" not in histograms({"edges": [0.0, 1.0], "chosen": [0], "rejected": [0]}, "x")
