"""`python -m pipelines VERB …`: the verbs that touch weights, as processes of their own.

The `finery` command starts these, forwards signals to them and passes their exit code on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipelines.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    CommandError,
    FineryError,
    OutOfMemory,
    RecipeError,
    Unforeseen,
    understood,
)
from pipelines.core.files import home
from pipelines.core.load import load, load_study, refuse_study
from pipelines.core.registry import COMMANDS
from pipelines.core.signals import StopSignal, die_with_parent, stop_on_signals

if TYPE_CHECKING:
    from pipelines.runs.planning.plan import Plan
    from pipelines.studies.plan import StudyPlan


class _Arguments(argparse.ArgumentParser):
    """The arguments of one verb. What is wrong with them is a CommandError."""

    def __init__(self, verb: str, missing: str = "") -> None:
        super().__init__(prog=verb, add_help=False, allow_abbrev=False)
        self.missing = missing
        """The sentence where an argument that must be there is not."""

    def number(self, option: str) -> None:
        """Take `option NUMBER`."""
        self.add_argument(option, type=float, default=None)

    def overrides(self) -> None:
        """Take `key=value …`."""
        self.add_argument("overrides", nargs="*")

    def error(self, message: str) -> NoReturn:
        option = re.match(r"argument (--[a-z-]+): (expected one argument|invalid (float|int) value)", message)
        if option is not None:
            typed = next(each.type for each in self._actions if option[1] in each.option_strings)
            raise CommandError(f"{option[1]} needs a {'value' if typed is None else 'number'}")
        if message.startswith("the following arguments are required") and self.missing:
            raise CommandError(self.missing)
        raise CommandError(f"{self.prog}: {message}")


def _run(words: Sequence[str]) -> int:
    arguments = _Arguments("run", "run needs a recipe: run RECIPE [key=value …]")
    arguments.add_argument("recipe")
    arguments.overrides()
    given = arguments.parse_intermixed_args(words)
    recipe = load(given.recipe, given.overrides)
    refuse_study(recipe, given.recipe)
    _quiet()
    from pipelines.runs.run import run

    run(recipe, Path("runs") / recipe.name)
    return EXIT_DONE


def _resume(words: Sequence[str]) -> int:
    if len(words) != 1 or not (Path(words[0]) / "recipe.yaml").is_file():
        raise CommandError(
            f"'{' '.join(words)}' is no run folder (it has no recipe.yaml); resume takes a folder such as runs/NAME"
        )
    folder = Path(words[0]).absolute()
    recipe = load(folder / "recipe.yaml")
    if recipe.matrix is not None:
        return _study(words)
    _quiet()
    from pipelines.runs.run import run, working_folder

    os.chdir(working_folder(folder))
    run(recipe, folder)
    return EXIT_DONE


def _study(words: Sequence[str]) -> int:
    arguments = _Arguments("study", "study needs a recipe with a matrix: study RECIPE [--parallel N] [key=value …]")
    arguments.add_argument("recipe", type=Path)
    arguments.number("--parallel")
    arguments.overrides()
    given = arguments.parse_intermixed_args(words)
    parallel: float | None = given.parallel
    if parallel is not None and not parallel.is_integer():
        raise CommandError(f"--parallel is {parallel:g}, must be a whole number")
    place: Path = given.recipe
    again = place.is_dir()
    file = place / "recipe.yaml" if again else place
    plan = load_study(file.absolute() if again else file, given.overrides)
    folder = (place if again else Path("runs") / plan.recipe.name).absolute()
    _quiet()
    from pipelines.runs.run import working_folder
    from pipelines.studies.study import run_study

    if again:
        os.chdir(working_folder(folder))
    source = {"recipe": str(file), "overrides": given.overrides}
    return run_study(plan, folder, None if parallel is None else int(parallel), source)


def _compare(words: Sequence[str]) -> int:
    """Prints one JSON object."""
    arguments = _Arguments("compare")
    arguments.add_argument("runs", nargs="*", type=Path)
    arguments.add_argument("--test", default="all")
    arguments.add_argument("--correction", default="holm")
    given = arguments.parse_intermixed_args(words)
    _quiet()
    from pipelines.studies.compare import compare

    with redirect_stdout(sys.stderr):
        comparison = compare(given.runs, given.test, given.correction)
    print(json.dumps(comparison, ensure_ascii=False))
    return EXIT_DONE


def _stage(words: Sequence[str]) -> int:
    """One rank of a stage, started by torchrun."""
    arguments = _Arguments("stage")
    arguments.add_argument("run", type=Path)
    arguments.add_argument("stage")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("processes", type=int)
    given = arguments.parse_args(words)
    die_with_parent(signal.SIGKILL)
    _quiet()
    from pipelines.runs.run import run_rank

    return run_rank(given.run, given.stage, given.folder, given.processes)


def _join(words: Sequence[str]) -> int:
    """This host's share of every stage of an attempt that runs on several hosts."""
    if words:
        raise CommandError("join takes no arguments; what it joins is in its environment")
    _quiet()
    from pipelines.runs.distributed import join

    return join()


def _plan(words: Sequence[str]) -> int:
    arguments = _Arguments("plan", "plan needs a recipe: plan RECIPE [--json] [key=value …]")
    arguments.add_argument("recipe")
    arguments.add_argument("--json", action="store_true")
    arguments.number("--flops-per-second")
    arguments.overrides()
    given = arguments.parse_intermixed_args(words)
    from pipelines.runs.planning.plan import plan

    recipe = load(given.recipe, given.overrides)
    if recipe.matrix is None:
        costs: Plan | StudyPlan = plan(recipe, flops_per_second=given.flops_per_second)
    else:
        from pipelines.studies.plan import plan_study

        study = load_study(given.recipe, given.overrides)
        costs = plan_study(study, flops_per_second=given.flops_per_second)
    print(json.dumps(costs.to_json(), indent=2) if given.json else "\n".join(costs.lines()))
    return EXIT_DONE


def _gc(words: Sequence[str]) -> int:
    arguments = _Arguments("gc")
    arguments.add_argument("--dry-run", action="store_true")
    arguments.number("--older-than")
    given = arguments.parse_args(words)
    from pipelines.runs.workspace import collect

    print(json.dumps(collect(home(), given.dry_run, given.older_than or 0.0).to_json()))
    return EXIT_DONE


def _answer(verb: str, words: Sequence[str]) -> int:
    """Print one JSON object on standard output: the answer, or the error. Everything else goes to standard error."""
    try:
        request = json.loads(words[0]) if len(words) == 1 else None
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise CommandError(f"{verb} needs one JSON object; people use: finery {verb}")
    _quiet()
    try:
        with stop_on_signals(StopSignal()), redirect_stdout(sys.stderr):
            answer = COMMANDS.load(verb)(request)
    except Exception as error:
        failure = understood(error)
        if isinstance(failure, OutOfMemory):
            failure = OutOfMemory("memory ran out; take a shorter text or a smaller model")
        elif isinstance(failure, Unforeseen):
            failure = Unforeseen(f"the work broke off with an error that was not foreseen: {failure}")
        print(json.dumps({"error": {"message": str(failure), "reason": failure.reason}}, ensure_ascii=False))
        raise failure from error
    print(json.dumps(answer, ensure_ascii=False))
    return EXIT_DONE


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "resume": _resume,
    "study": _study,
    "compare": _compare,
    "stage": _stage,
    "join": _join,
    "plan": _plan,
    "gc": _gc,
    **{verb: partial(_answer, verb) for verb in COMMANDS},
}
"""`python -m pipelines run RECIPE [key=value …]`, `resume RUN_FOLDER`, `study RECIPE|FOLDER [--parallel N] [key=value
…]`, `compare RUN … [--test T] [--correction C]`, `stage RUN_FOLDER STAGE_ID FOLDER PROCESSES`, `join`, `plan RECIPE
[--json] [--flops-per-second N] [key=value …]`, `gc [--dry-run] [--older-than DAYS]`. The others take one JSON object,
the fields of their module's request."""


def _quiet() -> None:
    """Libraries keep their bars and notes to themselves; telemetry stays off."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # PEFT 0.21 still asks transformers 5.23 for a name that is going away; nothing a user could do about it.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)


def main(words: Sequence[str]) -> int:
    """Run one verb; returns the exit code, after one sentence on standard error when it is not 0."""
    if sys.platform == "win32":
        print("finery: Windows is not supported; use Linux, or WSL on Windows", file=sys.stderr)
        return EXIT_FAILED
    if parent := os.environ.get("FINERY_PARENT_PID"):
        die_with_parent(signal.SIGTERM, int(parent))
    try:
        if not words or words[0] not in VERBS:
            raise CommandError(f"usage: python -m pipelines {{{'|'.join(VERBS)}}} …")
        return VERBS[words[0]](words[1:])
    except RecipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except FineryError as error:
        if isinstance(error, Unforeseen) and error.__cause__ is not None:  # whoever looks needs the whole trace
            traceback.print_exception(error.__cause__)
        print(f"finery: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
