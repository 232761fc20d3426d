"""`python -m pipelines VERB …`: the verbs that touch weights, as processes of their own.

The `finery` command starts these, forwards signals to them and passes their exit code on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
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
from pipelines.core.interfaces import PROFILE
from pipelines.core.load import load, load_either, load_study, refuse_study
from pipelines.core.recipe import Recipe
from pipelines.core.registry import COMMANDS
from pipelines.core.signals import StopSignal, die_with_parent, stop_on_signals

if TYPE_CHECKING:
    from pipelines.runs.planning.plan import Plan
    from pipelines.runs.planning.scaling import ClusterPlan
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
    arguments.add_argument("--profile", action="store_true")
    arguments.overrides()
    given = arguments.parse_intermixed_args(words)
    recipe = load(given.recipe, given.overrides)
    refuse_study(recipe, given.recipe)
    _quiet()
    if given.profile:
        os.environ[PROFILE] = "1"  # for the ranks of a stage too
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
    from pipelines.studies.workers import fork_server

    if again:
        os.chdir(working_folder(folder))
    source = {"recipe": str(file), "overrides": given.overrides}
    with fork_server(plan, main) or nullcontext() as server:
        return run_study(plan, folder, None if parallel is None else int(parallel), source, server=server)


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
    arguments.add_argument("profile")
    arguments.add_argument("processes", type=int)
    given = arguments.parse_args(words)
    die_with_parent(signal.SIGKILL)
    _quiet()
    from pipelines.runs.run import run_rank

    return run_rank(given.run, given.stage, given.folder, given.profile, given.processes)


def _join(words: Sequence[str]) -> int:
    """This host's share of every stage of an attempt that runs on several hosts."""
    if words:
        raise CommandError("join takes no arguments; what it joins is in its environment")
    _quiet()
    from pipelines.runs.distributed import join

    return join()


def _warm(words: Sequence[str]) -> int:
    """Import what runs need, for a process that goes on and forks them."""
    if words:
        raise CommandError("warm takes no arguments")
    _quiet()
    from pipelines.runs.warm import import_ahead, modules_of_any_recipe

    import_ahead(modules_of_any_recipe())
    return EXIT_DONE


CLUSTER = ("hosts", "network_gbps", "price")
"""Arguments of `plan --gpus`."""


def _plan(words: Sequence[str]) -> int:
    arguments = _Arguments("plan", "plan needs a recipe: plan RECIPE [--json] [--gpus 8xH100] [key=value …]")
    arguments.add_argument("recipe")
    arguments.add_argument("--json", action="store_true")
    arguments.number("--flops-per-second")
    arguments.add_argument("--gpus")
    for option in ("--hosts", "--network-gbps", "--price"):
        arguments.number(option)
    arguments.overrides()
    given = arguments.parse_intermixed_args(words)
    from pipelines.runs.planning.plan import plan

    if given.gpus is None and (without := [each for each in CLUSTER if getattr(given, each) is not None]):
        raise CommandError(f"--{without[0].replace('_', '-')} is of GPUs that --gpus names, such as --gpus 8xH100")
    recipe = load_either(given.recipe, given.overrides)
    if given.gpus is not None:
        from pipelines.runs.planning.scaling import cluster, plan_on

        if not isinstance(recipe, Recipe):
            raise CommandError("plan --gpus reads the recipe of one run, and this one is a study; leave `matrix` out")
        if given.hosts is not None and not (given.hosts.is_integer() and given.hosts >= 1):
            raise CommandError(f"--hosts is {given.hosts:g}, must be a whole number from 1")
        hosts = recipe.launch.hosts if given.hosts is None else int(given.hosts)
        target = cluster(given.gpus, hosts, given.network_gbps, given.price)
        costs: Plan | StudyPlan | ClusterPlan = plan_on(recipe, target, given.flops_per_second)
    elif isinstance(recipe, Recipe):
        costs = plan(recipe, flops_per_second=given.flops_per_second)
    else:
        from pipelines.studies.plan import plan_study

        costs = plan_study(recipe, flops_per_second=given.flops_per_second)
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


def _chat(words: Sequence[str]) -> int:
    """Answers messages on standard input one after another; JSON lines on both sides."""
    try:
        request = json.loads(words[0]) if len(words) == 1 else None
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise CommandError("chat needs one JSON object; people use: finery chat")
    _quiet()
    from pipelines.commands.chat import chat

    return chat(request, sys.stdin, sys.stdout)


def _alone(verb: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """A verb that starts processes itself, and so is none of several."""
    from pipelines.runs.distributed import refuse_foreign_launch

    refuse_foreign_launch()
    return verb(words)


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": partial(_alone, _run),
    "resume": partial(_alone, _resume),
    "study": partial(_alone, _study),
    "compare": _compare,
    "stage": _stage,
    "join": _join,
    "warm": _warm,
    "plan": _plan,
    "gc": _gc,
    "chat": _chat,
    **{verb: partial(_answer, verb) for verb in COMMANDS},
}
"""`python -m pipelines run RECIPE [key=value …]`, `resume RUN_FOLDER`, `study RECIPE|FOLDER [--parallel N] [key=value
…]`, `compare RUN … [--test T] [--correction C]`, `stage RUN_FOLDER STAGE_ID FOLDER PROFILE PROCESSES`, `join`, `warm`,
`plan RECIPE [--json] [--flops-per-second N] [--gpus NxGPU [--hosts N] [--network-gbps N] [--price N]] [key=value …]`,
`gc [--dry-run] [--older-than DAYS]`, `chat REQUEST`, which goes on reading. The others take one JSON object, the fields
of their module's request."""


def _collect_seldom() -> None:
    """Look for garbage after 50,000 new objects, not 700: importing torch and transformers makes a million that stay,
    and walking over them took a sixth of a short run."""
    gc.set_threshold(50_000)


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
    _collect_seldom()
    sys.exit(main(sys.argv[1:]))
