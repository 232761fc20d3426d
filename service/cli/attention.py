"""`finery attention`: a page and a picture of what every head of a model looks at. A child process does the work."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.errors import EXIT_DONE
from service.cli.answer import ask, refuse

HEADS_SHOWN = 3
"""Of each kind of attention, the most focused first."""


@dataclass(frozen=True)
class Question:
    """What is asked, in the words of the child."""

    model: str
    text: str
    pair: str | None
    target: str | None
    out: str
    layer: int | None
    head: int | None
    limit: int


def attention(question: Question, as_json: bool) -> int:
    """Write the page and the picture, say where they lie. Returns the exit code."""
    answer = ask("attention", asdict(question), "Reading the model and the text …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **answer.data}, ensure_ascii=False))
        return EXIT_DONE
    for section in answer.data["sections"]:
        print(f"  {line_of(section)}")
    for note in answer.data["notes"]:
        print(f"  {note}")
    print(f"\n  Page     {answer.data['html']}\n  Picture  {answer.data['png']}")
    print(f"  Next     xdg-open {shlex.quote(answer.data['html'])}")
    return EXIT_DONE


def line_of(section: dict[str, Any]) -> str:
    """`encoder  4 layers x 4 heads, 12 x 12 tokens; most focused: layer 3 head 1 (0.41 bits), …`."""
    maps = section["maps"]
    layers, heads = len({each["layer"] for each in maps}), len({each["head"] for each in maps})
    focused = sorted(maps, key=lambda each: each["entropy"])[:HEADS_SHOWN]
    named = ", ".join(f"layer {each['layer']} head {each['head']} ({each['entropy']:.2f} bits)" for each in focused)
    counted = f"{layers} layer{'s' if layers > 1 else ''} x {heads} head{'s' if heads > 1 else ''}"
    return f"{section['name']:<8} {counted}, {len(section['queries'])} x {len(section['keys'])} tokens; most focused: {named}"
