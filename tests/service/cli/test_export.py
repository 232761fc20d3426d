"""`finery export` shows size, difference and every score, also one that is undefined."""

from __future__ import annotations

from service.cli.export import show_export


def test_scores_stand_beside_each_other_also_where_one_is_undefined(capsys):
    scores = [("f1", 0.5, 0.25), ("pearson", None, None), ("perplexity", 7.0, None)]
    show_export(
        {
            "agreement": {"texts": 5, "rows": 5, "largest_difference": 0.01, "same_best": 0.8},
            "scores": [
                {"benchmark": "mine", "metric": name, "published": published, "exported": exported}
                for name, published, exported in scores
            ],
            "notes": ["something was left out"],
            "out": "mine-int8",
            "form": "int8",
            "bytes": 1000,
            "bytes_before": 4000,
        }
    )
    out = capsys.readouterr().out
    assert "f1 of mine: published 0.5000, exported 0.2500" in out
    assert "pearson of mine: published undefined, exported undefined or not measured" in out
    assert "perplexity of mine: published 7.0000, exported undefined or not measured" in out
    assert "80.0% of 5 best outputs are the same" in out
    assert "Note: something was left out." in out
    assert "mine-int8   int8, 1.0 kB of weights, were 4.0 kB" in out
