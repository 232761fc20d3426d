import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from pipelines.reports.plots import Dot, Line, Point, Scale, dot_plot, free_places, lines, pareto, scatter, seen, short

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
    root = parse(lines([Line("a", [(1, 1.0), (2, 0.5)]), Line("b", [(1, 1.0), (2, 0.5)])], "step", "loss"))
    names = [text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert abs(float(names[0].get("y")) - float(names[1].get("y"))) >= 13


def test_many_lines_keep_their_names_apart_and_inside():
    root = parse(lines([Line(str(at), [(1, 1.0), (2, 0.01)]) for at in range(9)], "step", "loss"))
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
