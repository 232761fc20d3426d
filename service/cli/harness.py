"""`finery harness`: any task of the lm-evaluation-harness on a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipelines.errors import EXIT_DONE, CommandError
from service.cli.answer import ask, refuse

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Question:
    """What is asked, in the words of the child."""

    model: str
    tasks: tuple[str, ...]
    num_fewshot: int | None
    limit: int | None
    include_path: str | None
    batch_size: int
    seed: int


def names_of(tasks: str) -> tuple[str, ...]:
    """The names in a list with commas. Raises CommandError when there is none."""
    found = tuple(name.strip() for name in tasks.split(",") if name.strip())
    if not found:
        raise CommandError("--tasks names no task; give one or more, such as --tasks hellaswag,lambada_openai")
    return found


def harness(question: Question, as_json: bool) -> int:
    """Show the scores. Returns the exit code."""
    answer = ask("harness", asdict(question), "Asking the harness' questions …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **answer.data}, ensure_ascii=False))
        return EXIT_DONE
    from rich.console import Console

    show(answer.data, Console(highlight=False))
    return EXIT_DONE


def show(data: dict[str, Any], console: Console) -> None:
    """One row a score."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for name, justify in (("task", "left"), ("examples", "right"), ("questions", "right"), ("metric", "left"), ("score", "right"), ("standard error", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for task, told in data["tasks"].items():
        for number, (metric, score) in enumerate(told["scores"].items()):
            shown = [task, _count(told["num_fewshot"]), _count(told["questions"])] if number == 0 else ["", "", ""]
            table.add_row(*shown, metric, f"{score['value']:.4f}", "" if score["stderr"] is None else f"{score['stderr']:.4f}")
    console.print(table)
    if data["cut"]:
        console.print(f"note: {data['cut']} requests are longer than the {data['reads']} tokens that the model reads and lost their beginning")


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,}"
