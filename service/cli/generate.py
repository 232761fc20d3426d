"""`finery generate` and `finery attention`: how a model continues a text, and what its heads look at.

`generate` decodes in several ways side by side, and shows what an encoder fills in; `attention` writes a page and a
picture of what every head looks at. Child processes do the work.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError
from service.cli.child import ask_and_show

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


NARROWEST = 38
"""Columns that a continuation needs; on a terminal with less room for two they stand one below another."""


@dataclass(frozen=True)
class GenerateOptions:
    """The options, in the words of the child."""

    model: str
    prompt: str | None
    prompts: str | None
    max_new_tokens: int
    num_beams: int
    temperature: float
    top_k: int
    top_p: float
    samples: int
    seed: int
    plain: bool = False


def generate(options: GenerateOptions, penalty_alpha: float | None, as_json: bool) -> int:
    """Show continuations or fill-ins. Returns the exit code."""
    check(options, penalty_alpha)

    def show_answer(data: dict[str, object]) -> None:
        from rich.console import Console

        show(data, Console(highlight=False))

    return ask_and_show("generate", asdict(options), "Reading the model, then writing …", as_json, show_answer)


def check(options: GenerateOptions, penalty_alpha: float | None) -> None:
    """Refuse at once what no model could do. Raises CommandError."""
    if penalty_alpha is not None:
        raise CommandError(
            "contrastive search (--penalty-alpha) is not offered: transformers fetches its code from the Hub, and "
            "Finery runs no "
            "code from there; compare greedy, beams and samples instead"
        )
    if (options.prompt is None) == (options.prompts is None):
        raise CommandError(
            "give one prompt, or a file of them with --prompts FILE"
            + (", not both" if options.prompt is not None else "")
        )
    if not 0 < options.temperature < math.inf:
        raise CommandError(
            f"--temperature is {options.temperature:g}, must be a number above 0; the limit 0 is greedy, which is "
            "shown anyway"
        )
    if not 0 < options.top_p <= 1:
        raise CommandError(f"--top-p is {options.top_p:g}, must be above 0 and at most 1 (1 keeps every word)")


def show(data: dict[str, Any], console: Console) -> None:
    """Everything that the child answered, prompt by prompt."""
    from rich.text import Text

    for note in data.get("notes", ()):
        console.print(Text(note, style="yellow"))
    for number, entry in enumerate(data["prompts"]):
        console.print(Text(("" if number == 0 else "\n") + printable(entry["prompt"]), style="bold"))
        console.print(
            fill_ins(entry, console)
            if data["method"] == "fill_mask"
            else continuations(entry["continuations"], console.width)
        )


def continuations(samples: Sequence[dict[str, Any]], width: int) -> RenderableType:
    """One panel each, as many side by side as there is room for."""
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    abreast = max(1, min(len(samples), width // NARROWEST))
    grid = Table.grid(expand=True)
    for _ in range(abreast):
        grid.add_column(ratio=1)
    panels = [
        Panel(
            Text.assemble(printable(each["text"]).strip() or "(nothing)", "\n", (numbers(each), "dim")),
            title=Text(each["method"], style="bold"),
            title_align="left",
            box=box.ROUNDED,
        )
        for each in samples
    ]
    for first in range(0, len(panels), abreast):
        row = panels[first : first + abreast]
        grid.add_row(*row, *[""] * (abreast - len(row)))
    return grid


def numbers(each: dict[str, object]) -> str:
    """`-2.31 per token, distinct-2 0.83, 24 tokens, ended, 110 tokens/s`."""
    chance, repeated = each["log_probability_per_token"], each["distinct_2"]
    parts = [
        "no token" if chance is None else f"log p {chance:.2f} per token",
        f"distinct-2 {'–' if repeated is None else f'{repeated:.2f}'}",
        f"{each['tokens']} token{'' if each['tokens'] == 1 else 's'}{', ended' if each['ended'] else ''}",
        f"{each['tokens_per_second']:,.0f} tokens/s",
    ]
    return " · ".join(parts)


def fill_ins(entry: dict[str, Any], console: Console) -> RenderableType:
    """A column for each mask, the likeliest word on top, and the text with the best of each."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    abreast = max(1, console.width // 28)
    tables = []
    for first in range(0, len(entry["masks"]), abreast):
        masks = entry["masks"][first : first + abreast]
        table = Table()
        for mask in masks:
            table.add_column(f"mask {mask['mask']}", no_wrap=True)
            table.add_column("", justify="right")
        for row in zip(*(mask["candidates"] for mask in masks), strict=True):
            table.add_row(
                *(cell for each in row for cell in (Text(printable(each["token"])), f"{each['probability']:.1%}"))
            )
        tables.append(table)
    return Group(*tables, Text(f"Likeliest: {printable(entry['text'])}"))


def printable(text: str) -> str:
    """A model may write anything: nothing of it may steer the terminal."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else " " if letter == "\t" else "�" for letter in text
    )


HEADS_SHOWN = 3
"""Of each kind of attention, the most focused first."""


@dataclass(frozen=True)
class AttentionOptions:
    """The options, in the words of the child."""

    model: str
    text: str
    pair: str | None
    target: str | None
    out: str
    layer: int | None
    head: int | None
    limit: int


def attention(options: AttentionOptions, as_json: bool) -> int:
    """Write the page and the picture, say where they lie. Returns the exit code."""
    return ask_and_show("attention", asdict(options), "Reading the model and the text …", as_json, show_maps)


def show_maps(data: dict[str, Any]) -> None:
    """What is most focused, and where the page and the picture lie."""
    for section in data["sections"]:
        print(f"  {line_of(section)}")
    for note in data["notes"]:
        print(f"  {note}")
    print(f"\n  Page     {data['html']}\n  Picture  {data['png']}")
    print(f"  Next     xdg-open {shlex.quote(data['html'])}")


def line_of(section: dict[str, Any]) -> str:
    """`encoder  4 layers x 4 heads, 12 x 12 tokens; most focused: layer 3 head 1 (0.41 bits), …`."""
    maps = section["maps"]
    layers, heads = len({each["layer"] for each in maps}), len({each["head"] for each in maps})
    focused = sorted(maps, key=lambda each: each["entropy"])[:HEADS_SHOWN]
    named = ", ".join(f"layer {each['layer']} head {each['head']} ({each['entropy']:.2f} bits)" for each in focused)
    counted = f"{layers} layer{'s' if layers > 1 else ''} x {heads} head{'s' if heads > 1 else ''}"
    return (
        f"{section['name']:<8} {counted}, {len(section['queries'])} x {len(section['keys'])} tokens; most focused: "
        f"{named}"
    )
