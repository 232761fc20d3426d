from __future__ import annotations

import re

from pipelines.reports.run_plots import scores

HISTOGRAM = {"edges": [-1.0, 0.0, 1.0], "chosen": [0, 4], "rejected": [2, 1]}


def test_a_bar_for_each_side_and_bin_that_has_answers():
    text = scores(HISTOGRAM, "a picture")
    bars = re.findall(r"<title>([^<]+)</title>", text)
    assert bars == ["4 chosen from 0 to 1", "2 rejected from -1 to 0", "1 rejected from 0 to 1"]
    heights = [float(height) for height in re.findall(r'height="([\d.]+)" fill-opacity', text)]
    assert heights[0] > heights[1] > heights[2] > 0
    assert 'aria-label="a picture"' in text


def test_nothing_is_no_bar():
    assert "rect" not in scores({"edges": [0.0, 1.0], "chosen": [0], "rejected": [0]}, "x")
