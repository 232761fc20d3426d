"""Methods by reward and KL divergence, drawn."""

import re
from xml.etree import ElementTree

from pipelines.reports.plots import Reached, frontier

METHODS = [
    Reached("dpo", ((4.0, 1.0), (6.0, 3.0))),
    Reached("ppo <1>", ((10.0, 4.0), (12.0, 6.0))),
    Reached("worse", ((20.0, 1.0),)),
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
