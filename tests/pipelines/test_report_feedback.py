"""What the report says of a judge."""

from __future__ import annotations

from typing import Any

from pipelines.reports import run_page

SHARE = {"value": 0.8, "low": 0.7, "high": 0.9, "count": 1234}
DETAILS: dict[str, Any] = {
    "comparisons": 1234, "completions": 2000, "prompts": 500, "preferences": 480, "abstentions": 3, "ties": 7, "order_consistency": SHARE,
    "position_bias": {"value": None, "low": 0.0, "high": 1.0, "count": 0},
    "spent": {"questions": 2468, "prompt_tokens": 9000, "completion_tokens": 2468, "cost": 0.0123},
}  # fmt: skip


def test_shares_that_were_measured_are_shown() -> None:
    (block,) = run_page.blocks([{"stage": "feedback", "page": "stages/02-feedback/audit.html", "details": DETAILS}])
    assert "same verdict in both orders" in block["plot"]
    assert "what is shown first" not in block["plot"]
    assert block["told"].endswith(
        "3 were abstentions, 7 ties. The judge answered 2,468 questions with 11,468 tokens for 0.0123."
    )


def test_nothing_measured_is_no_plot() -> None:
    (block,) = run_page.blocks(
        [{"stage": "f", "page": "x", "details": {**DETAILS, "order_consistency": {"value": None}, "spent": {}}}]
    )
    assert block["plot"] == ""
    assert block["told"].endswith("7 ties.")
