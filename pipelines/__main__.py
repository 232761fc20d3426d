"""`python -m pipelines VERB …`: the verbs that touch weights, as processes of their own.

The `finery` command starts these, forwards signals to them and passes their exit code on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

from pipelines.errors import EXIT_DONE, EXIT_FAILED, CommandError, FineryError, OutOfMemory, RecipeError, Unforeseen
from pipelines.signals import die_with_parent


def _run(words: Sequence[str]) -> int:
    """run RECIPE [key=value …]"""
    from pipelines import recipe as recipes

    if not words:
        raise CommandError("run needs a recipe: run RECIPE [key=value …]")
    recipe = recipes.load(words[0], words[1:])
    _quiet()
    from pipelines.run import run

    run(recipe, Path("runs") / recipe.name)
    return EXIT_DONE


def _resume(words: Sequence[str]) -> int:
    """resume RUN_FOLDER"""
    from pipelines import recipe as recipes

    if len(words) != 1 or not (Path(words[0]) / "recipe.yaml").is_file():
        raise CommandError(
            f"'{' '.join(words)}' is no run folder (it has no recipe.yaml); resume takes a folder such as runs/NAME"
        )
    folder = Path(words[0]).absolute()
    recipe = recipes.load(folder / "recipe.yaml")
    _quiet()
    from pipelines.run import run, working_folder

    os.chdir(working_folder(folder))
    run(recipe, folder)
    return EXIT_DONE


def _stage(words: Sequence[str]) -> int:
    """stage RUN_FOLDER STAGE_ID FOLDER PROCESSES: one rank of a stage, started by torchrun"""
    die_with_parent(signal.SIGKILL)
    _quiet()
    from pipelines.rank import run_rank

    return run_rank(Path(words[0]), words[1], Path(words[2]), int(words[3]))


def _plan(words: Sequence[str]) -> int:
    """plan RECIPE [--json] [--flops-per-second N] [key=value …]"""
    from pipelines import recipe as recipes
    from pipelines.plan import plan

    as_json = "--json" in words
    rest = [word for word in words if word != "--json"]
    rate = _number(rest, "--flops-per-second")
    if not rest:
        raise CommandError("plan needs a recipe: plan RECIPE [--json] [key=value …]")
    found = plan(recipes.load(rest[0], rest[1:]), flops_per_second=rate)
    print(json.dumps(found.to_json(), indent=2) if as_json else "\n".join(found.lines()))
    return EXIT_DONE


def _gc(words: Sequence[str]) -> int:
    """gc [--dry-run] [--older-than DAYS]"""
    from pipelines.workspace import collect, home

    older = _number(list(words), "--older-than") or 0.0
    print(json.dumps(collect(home(), "--dry-run" in words, older).to_json()))
    return EXIT_DONE


def _attention(words: Sequence[str]) -> int:
    """attention REQUEST: one JSON object with the fields of attention_maps.Request"""
    return _answer("attention", "pipelines.attention_maps", words)


def _generate(words: Sequence[str]) -> int:
    """generate REQUEST: one JSON object with the fields of generation.Request"""
    return _answer("generate", "pipelines.generation", words)


def _answer(verb: str, module: str, words: Sequence[str]) -> int:
    """Print one JSON object on standard output: the answer, or the error. Everything else goes to standard error."""
    from pipelines.failures import understood
    from pipelines.protocols import StopSignal
    from pipelines.signals import stop_on_signals

    try:
        request = json.loads(words[0]) if len(words) == 1 else None
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise CommandError(f"{verb} needs one JSON object; people use: finery {verb}")
    _quiet()
    try:
        with stop_on_signals(StopSignal()), redirect_stdout(sys.stderr):
            told = import_module(module).answer(request)
    except Exception as error:
        failure = understood(error)
        if isinstance(failure, OutOfMemory):
            failure = OutOfMemory("memory ran out; take a shorter text or a smaller model")
        elif isinstance(failure, Unforeseen):
            failure = Unforeseen(f"the work broke off with an error that was not foreseen: {failure}")
        print(json.dumps({"error": {"message": str(failure), "reason": failure.reason}}, ensure_ascii=False))
        raise failure from error
    print(json.dumps(told, ensure_ascii=False))
    return EXIT_DONE


def _number(words: list[str], option: str) -> float | None:
    """Take `option NUMBER` out of `words`."""
    if option not in words:
        return None
    place = words.index(option)
    try:
        value = float(words[place + 1])
    except (IndexError, ValueError):
        raise CommandError(f"{option} needs a number") from None
    del words[place : place + 2]
    return value


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "resume": _resume,
    "stage": _stage,
    "plan": _plan,
    "gc": _gc,
    "attention": _attention,
    "generate": _generate,
}


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
