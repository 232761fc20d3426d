"""`finery validate` and `finery data show`: what can be said of a recipe before it runs.

`validate` shows every mistake of every recipe at once. `data show` has a child process show the first examples of a
stage as its model reads them, with what of them is learnt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import EXIT_DONE, EXIT_USAGE, CommandError, RecipeError
from pipelines.core.load import load, load_either
from pipelines.core.recipe import Recipe
from pipelines.core.study_cells import StudyRecipe, named
from service.cli.app import failure
from service.cli.child import ask_and_show
from service.cli.generate import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def validate(arguments: Sequence[str], as_json: bool) -> int:
    """Check each recipe with the overrides among the arguments. Returns the exit code."""
    overrides = [each for each in arguments if "=" in each and not Path(each).exists()]
    files = [each for each in arguments if each not in overrides]
    if not files:
        raise CommandError("only overrides were given; name at least one recipe before them")
    answers: list[dict[str, object]] = []
    refused: list[str] = []
    for file in files:
        try:
            loaded = load_either(file, overrides)
        except RecipeError as error:
            refused.append(str(error))
            mistakes = [
                {"file": each.file, "line": each.line, "key": each.key, "message": each.message}
                for each in error.mistakes
            ]
            answers.append({"recipe": file, "fine": False, "mistakes": mistakes})
            if not as_json:
                print(error, file=sys.stderr)
        else:
            recipe = loaded.recipe if isinstance(loaded, StudyRecipe) else loaded
            count = len(recipe.stages)
            answer = {
                "recipe": file,
                "fine": True,
                "name": recipe.name,
                "stages": [stage.id for stage in recipe.stages],
                "mistakes": [],
                "warnings": [*loaded.doubts(), *_lacking(loaded)],
            }
            summary = f"{count} stage{'s' if count != 1 else ''}"
            refusals: list[str] = []
            if isinstance(loaded, StudyRecipe):
                summary, refusals, cells = _study(loaded)
                answer["cells"] = cells
            answers.append(answer)
            if not as_json:
                print("\n".join([f"{file}: fine ({summary})", *refusals]))
                for sentence in (*loaded.doubts(), *_lacking(loaded)):
                    print(f"  warning: {sentence}", file=sys.stderr)
    fine = not refused
    if as_json:
        outcome: dict[str, object] = {"status": "done", "exit_code": EXIT_DONE}
        if refused:
            outcome = failure(EXIT_USAGE, "\n".join(refused), RecipeError.reason)
        print(json.dumps({**outcome, "fine": fine, "recipes": answers}, ensure_ascii=False))
    return EXIT_DONE if fine else EXIT_USAGE


def _lacking(loaded: Recipe | StudyRecipe) -> list[str]:
    """What this machine has not got: the recipe is valid all the same, and may run on another."""
    recipes = [cell.recipe for cell in loaded.cells] if isinstance(loaded, StudyRecipe) else [loaded]
    launches = [why for recipe in recipes if (why := recipe.launch.unavailable_reason()) is not None]
    sentences = dict.fromkeys([*launches, *(sentence for recipe in recipes for _, sentence in recipe.lacking())])
    return [f"this machine cannot run it: {sentence}" for sentence in sentences]


def _study(plan: StudyRecipe) -> tuple[str, list[str], list[dict[str, object]]]:
    """What a study is made of: in short, a line for each refused cell, and every cell as data."""
    from service.cli.study import trials_of

    count, refused, trials = len(plan.cells), len(plan.refused), trials_of(plan)
    summary = f"a study of {count} cell{'s' if count != 1 else ''}"
    summary += f", {refused} of them refused" if refused else ""
    summary += f", after {trials} trials" if trials else ""
    lines = [f"  refused: {named(cell.labels)}: {cell.refusal}" for cell in plan.refused]
    cells: list[dict[str, object]] = [
        {"cell": cell.folder, "labels": dict(cell.labels), "refused": cell.refusal or None} for cell in plan.cells
    ]
    return summary, lines, cells


LEARNT = "bold green"
OPEN, CLOSE = "⟦", "⟧"
"""What stands around learnt text where there are no colours."""


@dataclass(frozen=True)
class DataOptions:
    """The options, in the words of the child."""

    recipe: str
    overrides: tuple[str, ...]
    stage: str | None
    rows: int


def show_data(options: DataOptions, as_json: bool) -> int:
    """Show what a stage learns from. Returns the exit code."""
    load(options.recipe, options.overrides)  # a mistake in the recipe is told with its line, by this process

    def show_answer(data: dict[str, object]) -> None:
        from rich.console import Console

        show(data, Console(highlight=False, soft_wrap=not sys.stdout.isatty()))

    return ask_and_show("data", asdict(options), "Reading the data …", as_json, show_answer)


def show(data: dict[str, Any], console: Console) -> None:
    """Every task of the stage: what it is, its first examples, and what is wrong with them."""
    from rich.text import Text

    coloured = console.color_system is not None
    for number, task in enumerate(data["tasks"]):
        console.print(Text(("\n" if number else "") + title(task), style="bold"))
        console.print(Text("\n".join(facts(task)), style="dim"))
        for place, row in enumerate(task["rows"], start=1):
            console.print(Text(f"\nExample {place}, {row['tokens']:,} tokens", style="bold"))
            console.print(text_of(row["pieces"], coloured))
            if row["answer"] is not None:
                console.print(Text(f"→ {printable(str(row['answer']))}", style=LEARNT if coloured else ""))
        if any(learnt for row in task["rows"] for _, learnt in row["pieces"]):
            console.print(
                Text("\nLearnt: green" if coloured else f"\nLearnt: {OPEN}between brackets{CLOSE}", style="dim")
            )
        for sentence in task["notes"]:
            console.print(Text(f"note: {sentence}"))
        for sentence in task["warnings"]:
            console.print(Text(f"warning: {sentence}", style="yellow"))


def title(task: dict[str, object]) -> str:
    """`instruct: alpaca (causal), 4,498 examples`."""
    return (
        f"{task['id']}: {task['task']} ({task['kind']}), {task['examples']:,} "
        f"example{'' if task['examples'] == 1 else 's'}"
    )


def facts(task: dict[str, Any]) -> Sequence[str]:
    """What was detected, and how long the examples are."""
    lines = []
    if task.get("format"):
        lines.append(f"format {task['format']}, chat template {task.get('template') or 'none'}")
    sizes = task["lengths"]
    if sizes and sizes["least"] == sizes["most"]:
        lines.append(f"tokens: {sizes['most']:,.0f} each")
    elif sizes:
        lines.append(
            f"tokens: {sizes['least']:,.0f} to {sizes['most']:,.0f}, half of them from {sizes['quarter']:,.0f} to "
            f"{sizes['three_quarters']:,.0f}, median {sizes['median']:,.0f}"
        )
    if "learnt_share" in task:
        lines.append(f"{task['learnt_share']:.1%} of all tokens are learnt")
    return lines


def text_of(pieces: Sequence[tuple[str, bool]], coloured: bool) -> Text:
    """The text of an example; what is learnt is green, or in brackets."""
    from rich.text import Text

    whole = Text()
    for words, learnt in pieces:
        text = printable(words)
        whole.append(
            f"{OPEN}{text}{CLOSE}" if learnt and not coloured else text, style=LEARNT if learnt and coloured else ""
        )
    return whole
