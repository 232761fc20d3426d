"""`finery evals`: the runs of a service's evals, and whether one is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.cli.jobs import connect, quoted, table, tell


def compare(eval_id: str, first: str, second: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Two runs of one eval, criterion by criterion. Returns the exit code."""
    with connect(server, token_file) as connection:
        found: dict[str, Any] = connection.get(f"/evals/{quoted(eval_id)}/compare", first=first, second=second)
    if as_json:
        return tell(found, True)
    names = (found["first_model"] or found["first"], found["second_model"] or found["second"])
    rows = [
        (
            each["name"],
            f"{each['first']:.3f}",
            f"{each['second']:.3f}",
            f"{each['difference']:+.3f}",
            f"{each['interval'][0]:+.3f} to {each['interval'][1]:+.3f}",
            shown(each["p_score"]),
            f"{each['passed_first']} and {each['passed_second']} of {found['rows']}",
            shown(each["p_passed"]),
            {"first": f"{names[0]} is better", "second": f"{names[1]} is better"}.get(each["verdict"], "undecided"),
        )
        for each in found["criteria"]
    ]
    table(("criterion", "first", "second", "difference", "95 %", "p", "passed", "p", ""), rows)
    left_out = f"; {found['left_out']} rows with errors are left out" if found["left_out"] else ""
    return tell(None, False, f"first: {names[0]}, second: {names[1]}, {found['rows']} rows{left_out}")


def shown(p_value: float) -> str:
    """A p-value for people."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
