"""`finery verify` and `finery reproduce`: whether a published folder is what it says, and whether it can be made again.

Child processes do the work. Exit codes: 0 it is, 1 something is not, 2 the command is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED
from service.cli.child import ask, refuse

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class VerifyOptions:
    """The options, in the words of the child."""

    folder: str
    data: str | None
    public_key: str | None
    trust_remote_code: bool


def verify(options: VerifyOptions, as_json: bool) -> int:
    """Say what holds and what does not. Returns the exit code."""
    answer = ask("verify", asdict(options), "Reading every file, then scoring …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    return tell(answer.data, bool(answer.data["verified"]), as_json, show_verified)


@dataclass(frozen=True)
class ReproduceOptions:
    """The options, in the words of the child."""

    folder: str
    data: str | None
    environment: bool
    trust_remote_code: bool


def reproduce(options: ReproduceOptions, as_json: bool) -> int:
    """Make the model again and say which scores came out. Returns the exit code."""
    doing = "Making the model again; what it does stands in runs/reproduce-NAME/console.log …"
    answer = ask("reproduce", asdict(options), doing, as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    return tell(answer.data, bool(answer.data["reproduced"]), as_json, show_reproduced)


def tell(data: Mapping[str, Any], holds: bool, as_json: bool, show: Any) -> int:
    """Show what was found out, or print it as one JSON object. Returns the exit code."""
    code = EXIT_DONE if holds else EXIT_FAILED
    if as_json:
        print(json.dumps({"status": "done" if holds else "failed", "exit_code": code, **data}, ensure_ascii=False))
    else:
        show(data)
    return code


def show_verified(data: Mapping[str, Any]) -> None:
    """Scores beside each other, what was not looked at, and on standard error what is wrong."""
    _show_scores(data)
    for note in data["notes"]:
        print(f"  Note: {note}.")
    for problem in data["problems"]:
        print(f"  {problem}", file=sys.stderr)
    if data["verified"]:
        checked = f"{data['files']} files are as published" + (", by the owner of this key" if data["signed"] else "")
        scored = f"; {_scores(data)} came out again" if data["scores"] else "; it did not score"
        print(f"  Verified    {data['folder']}   {checked}{scored}")
    else:
        print(f"  Not as published: {data['folder']}", file=sys.stderr)


def show_reproduced(data: Mapping[str, Any]) -> None:
    """Scores beside each other, whether the weights are the same, and on standard error what is wrong."""
    _show_scores(data)
    if data["same_weights"] is not None:
        print(f"  The weights are {'the same, byte for byte' if data['same_weights'] else 'other ones'}.")
    for note in data.get("notes", ()):
        print(f"  Note: {note}.")
    for problem in data["problems"]:
        print(f"  {problem}", file=sys.stderr)
    if data["reproduced"]:
        print(f"  Reproduced  {data['folder']}   {_scores(data)} came out; the run lies in {data['place']}")
    else:
        print(f"  Not reproduced: {data['folder']}", file=sys.stderr)


def _show_scores(data: Mapping[str, Any]) -> None:
    if not data["scores"]:
        return
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    console.print(Padding(scores_table(data["scores"]), (0, 0, 0, 2), expand=False))
    if data["differences"]:
        print("  Scores may differ a little here: " + "; ".join(data["differences"]) + ".")
    else:
        print("  The machine and the versions are those of the publication: every digit must be the same.")


def scores_table(scores: list[dict[str, Any]]) -> Table:
    """One row a score."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for name in ("benchmark", "score", "stated", "measured", "allowed", ""):
        table.add_column(name, justify="left" if name in ("benchmark", "score", "") else "right", no_wrap=True)
    for each in scores:
        exact = each["low"] == each["high"]
        allowed = "the same" if exact else f"{_number(each['low'])} – {_number(each['high'])}"
        table.add_row(
            each["benchmark"],
            each["metric"],
            _number(each["stated"]),
            _number(each["measured"]),
            allowed,
            "" if each["holds"] else "differs",
        )
    return table


def _scores(data: Mapping[str, Any]) -> str:
    count = len(data["scores"])
    return f"{count} score{'' if count == 1 else 's'}"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
