"""What the verbs that talk to a service have in common: the connection, the answer as text or JSON, times for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client.connection import Connection

STYLES = {
    "queued": "dim", "starting": "cyan", "running": "cyan", "recovering": "yellow", "pausing": "yellow", "paused": "yellow",
    "cancelling": "yellow", "cancelled": "dim", "succeeded": "green", "failed": "red",
}  # fmt: skip


def connect(server: str | None, token_file: Path | None) -> Connection:
    """A connection to the server that the command names. Raises CommandError."""
    from service.client.connection import Connection
    from service.client.place import find

    return Connection(find(server, token_file))


def tell(data: Any, as_json: bool, *lines: str) -> int:
    """Print the answer, as one JSON object or as lines. Returns the exit code 0."""
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
    else:
        print("\n".join(lines))
    return 0


def say(sentence: str) -> None:
    """A sentence beside the answer."""
    print(sentence, file=sys.stderr)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], styles: Sequence[str | None] = ()) -> None:
    """Rows under a heading, as wide as what is in them; `styles` colours whole rows on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for name in columns:
        grid.add_column(name, overflow="fold", no_wrap=name in ("job", "id"))
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else None
        grid.add_row(*(Text(str(cell), style=style or "") for cell in row))
    console.print(grid)


def since(moment: str | None, now: datetime | None = None) -> str:
    """`3 s ago`, `12 min ago`, `2 h ago`, `5 d ago`; a dash for nothing."""
    if not moment:
        return "-"
    seconds = max(0, round(((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def gigabytes(size: float) -> str:
    """Bytes as `1.5 GB`."""
    return f"{size / 1e9:.1f} GB"
