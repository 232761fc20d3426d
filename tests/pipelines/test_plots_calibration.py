import re

from pipelines.reports.run_plots import LEFT, SIDE, TOP, reliability


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
