from __future__ import annotations

import re

from pipelines.reports.run_plots import LEFT, SIDE, TOP, confusion_matrix, histograms, reliability


def test_a_bar_ends_at_the_accuracy_and_the_gap_reaches_to_the_confidence():
    text = reliability([{"low": 0.8, "high": 1.0, "examples": 10, "confidence": 0.9, "accuracy": 0.5}], "a picture")
    bar, gap = re.findall(
        r'<rect class="(?:bar|gap)" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)"(?: height="([\d.]+)")', text
    )
    assert (float(bar[0]), float(bar[1])) == (LEFT + 0.8 * SIDE + 1, 0.2 * SIDE - 2)
    assert (float(bar[2]), float(bar[3])) == (TOP + SIDE / 2, SIDE / 2)
    assert (float(gap[2]), round(float(gap[3]), 6)) == (TOP + 0.1 * SIDE, 0.4 * SIDE)
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
