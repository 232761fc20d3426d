"""`finery validate`: every mistake of every recipe at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import EXIT_DONE, EXIT_USAGE, CommandError, RecipeError


def validate(arguments: Sequence[str], as_json: bool) -> int:
    """Check each recipe with the overrides among the arguments. Returns the exit code."""
    from pipelines.recipe import load

    overrides = [each for each in arguments if "=" in each and not Path(each).exists()]
    files = [each for each in arguments if each not in overrides]
    if not files:
        raise CommandError("only overrides were given; name at least one recipe before them")
    answers: list[dict[str, object]] = []
    for file in files:
        try:
            recipe = load(file, overrides)
        except RecipeError as error:
            mistakes = [{"file": each.file, "line": each.line, "key": each.key, "message": each.message} for each in error.mistakes]
            answers.append({"recipe": file, "fine": False, "mistakes": mistakes})
            if not as_json:
                print(error, file=sys.stderr)
        else:
            count = len(recipe.stages)
            answer = {"recipe": file, "fine": True, "name": recipe.name, "stages": [stage.id for stage in recipe.stages], "mistakes": []}
            told = f"{count} stage{'s' if count != 1 else ''}"
            refusals: list[str] = []
            if recipe.matrix is not None:
                told, refusals, cells = _study(file, overrides)
                answer["cells"] = cells
            answers.append(answer)
            if not as_json:
                print("\n".join([f"{file}: fine ({told})", *refusals]))
    fine = all(answer["fine"] for answer in answers)
    if as_json:
        print(json.dumps({"fine": fine, "recipes": answers}, ensure_ascii=False))
    return EXIT_DONE if fine else EXIT_USAGE


def _study(file: str, overrides: Sequence[str]) -> tuple[str, list[str], list[dict[str, object]]]:
    """What a study is made of: in short, a line for each refused cell, and every cell as data."""
    from pipelines.cells import load_study, named
    from service.cli.study_progress import trials_of

    plan = load_study(file, overrides)
    count, refused, trials = len(plan.cells), len(plan.refused), trials_of(plan)
    told = f"a study of {count} cell{'s' if count != 1 else ''}"
    told += f", {refused} of them refused" if refused else ""
    told += f", after {trials} trials" if trials else ""
    lines = [f"  refused: {named(cell.labels)}: {cell.refusal}" for cell in plan.refused]
    cells: list[dict[str, object]] = [{"cell": cell.folder, "labels": dict(cell.labels), "refused": cell.refusal or None} for cell in plan.cells]
    return told, lines, cells
