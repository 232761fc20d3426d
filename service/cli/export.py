"""`finery export`: a published model in another form, and how far that form is from it. A child does the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from service.cli.child import ask_and_show
from service.cli.publish import size


@dataclass(frozen=True)
class ExportOptions:
    """The options, in the words of the child."""

    folder: str
    to: str
    out: str
    data: str | None
    text: str | None
    trust_remote_code: bool


def export(options: ExportOptions, as_json: bool) -> int:
    """Write the export and say how it compares. Returns the exit code."""
    return ask_and_show("export", asdict(options), "Writing the export, then asking it …", as_json, show_export)


def show_export(data: Mapping[str, Any]) -> None:
    """Size, difference, scores, and where it lies."""
    agreement = data["agreement"]
    print(
        f"  On {agreement['texts']} texts a logit differs by at most {agreement['largest_difference']:.2e}; "
        f"{agreement['same_best']:.1%} of {agreement['rows']:,} best outputs are the same."
    )
    for each in data["scores"]:
        published = "undefined" if each["published"] is None else f"{each['published']:.4f}"
        exported = "undefined or not measured" if each["exported"] is None else f"{each['exported']:.4f}"
        print(f"  {each['metric']} of {each['benchmark']}: published {published}, exported {exported}")
    for note in data["notes"]:
        print(f"  Note: {note}.")
    print(
        f"  Exported    {data['out']}   {data['form']}, {size(data['bytes'])} of weights, were "
        f"{size(data['bytes_before'])}"
    )
