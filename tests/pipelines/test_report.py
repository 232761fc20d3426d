from html.parser import HTMLParser

from pipelines.report import page
from pipelines.study_statistics import Estimate
from pipelines.study_table import Figure, Row


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
    costs = {"trainable_parameters": share * 1000, "all_parameters": 1000.0, "train_runtime": 10 * share, "peak_memory_bytes": 1e8, "saved_bytes": share * 4000}
    return Row({"method": name}, name, "glue/mrpc", "evaluate", "mrpc", 2, {"done": 2}, figures={"accuracy": figure}, costs=costs, is_reference=reference, curve=[(1, 1.0), (2, 0.5)])


DATA = {
    "name": "a <b> study", "reference": "full", "compared": "method", "counts": {"done": 4, "failed": 1, "refused": 0, "stopped": 0, "queued": 0},
    "cells": [{"cell": "cells/05", "labels": {"method": "ia3"}, "status": "failed", "message": "<script>alert(1)</script>"}],
    "search": [{"labels": {"method": "full"}, "trials": [{"values": {"stages.a.arguments.learning_rate": 1e-3}, "rung": 1, "status": "done", "message": "", "metric": "loss", "score": 0.5, "chosen": True}]}],
}  # fmt: skip


def test_the_page_stands_alone_and_shows_every_plot_and_number():
    text = page(DATA, [row("full", 0.8, 1.0, True), row("lora", 0.7, 0.01), Row({"method": "ia3"}, "ia3", expected=2, counts={"failed": 2})])
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.addresses == []
    assert text.count("<svg") == 5  # scores; share, time and disk, as memory is the same for both; curves
    words = " ".join(parser.text)
    for told in ("0.800 ± 0.010", "-0.100 (-0.150 to -0.050)", "lora: worse than full", "learning_rate 0.001", "loss 0.500", "chosen", "4 of 5 cells are done; 1 failed.",
                 "Highest accuracy: full, 0.800 ± 0.010; no other is better than it outside the noise. 1 of 3 rows lack seeds.", "glue/mrpc"):
        assert told in words
    assert "<script>" not in text
    assert "<script>alert(1)</script>" in words


def test_a_page_without_any_result_is_a_page_too():
    parser = Balanced()
    parser.feed(page(DATA | {"search": []}, [Row({"method": "ia3"}, "ia3", expected=2, counts={"queued": 2})]))
    assert parser.open == []
    assert "missing" in " ".join(parser.text)


def test_a_row_without_a_result_stands_in_the_plot_with_its_reason():
    text = page(DATA, [row("full", 0.8, 1.0, True), Row({"method": "ia3"}, "ia3", expected=2, counts={"failed": 2})])
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
