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

from pipelines.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    CommandError,
    FineryError,
    OutOfMemory,
    RecipeError,
    Unforeseen,
)
from pipelines.core.load import refuse_study
from pipelines.core.signals import die_with_parent


def _run(words: Sequence[str]) -> int:
    """run RECIPE [key=value …]"""
    from pipelines.core.load import load as load_recipe

    if not words:
        raise CommandError("run needs a recipe: run RECIPE [key=value …]")
    recipe = load_recipe(words[0], words[1:])
    refuse_study(recipe, words[0])
    _quiet()
    from pipelines.runs.run import run

    run(recipe, Path("runs") / recipe.name)
    return EXIT_DONE


def _resume(words: Sequence[str]) -> int:
    """resume RUN_FOLDER"""
    from pipelines.core.load import load as load_recipe

    if len(words) != 1 or not (Path(words[0]) / "recipe.yaml").is_file():
        raise CommandError(
            f"'{' '.join(words)}' is no run folder (it has no recipe.yaml); resume takes a folder such as runs/NAME"
        )
    folder = Path(words[0]).absolute()
    recipe = load_recipe(folder / "recipe.yaml")
    if recipe.matrix is not None:
        return _study(words)
    _quiet()
    from pipelines.runs.run import run, working_folder

    os.chdir(working_folder(folder))
    run(recipe, folder)
    return EXIT_DONE


def _study(words: Sequence[str]) -> int:
    """study RECIPE|FOLDER [--parallel N] [key=value …]"""
    from pipelines.core.load import load_study

    rest = list(words)
    parallel = _number(rest, "--parallel")
    if not rest:
        raise CommandError("study needs a recipe with a matrix: study RECIPE [--parallel N] [key=value …]")
    if parallel is not None and not parallel.is_integer():
        raise CommandError(f"--parallel is {parallel:g}, must be a whole number")
    place = Path(rest[0])
    file = place / "recipe.yaml" if place.is_dir() else place
    plan = load_study(file.absolute() if place.is_dir() else file, rest[1:])
    folder = (place if place.is_dir() else Path("runs") / plan.recipe.name).absolute()
    _quiet()
    from pipelines.runs.run import working_folder
    from pipelines.studies.study import run_study

    if place.is_dir():
        os.chdir(working_folder(folder))
    source = {"recipe": str(file), "overrides": rest[1:]}
    return run_study(plan, folder, None if parallel is None else int(parallel), source)


def _compare(words: Sequence[str]) -> int:
    """compare RUN RUN … [--test T] [--correction C]: one JSON object"""
    _quiet()
    from pipelines.studies.compare import compare

    rest = list(words)
    test, correction = _word(rest, "--test") or "all", _word(rest, "--correction") or "holm"
    with redirect_stdout(sys.stderr):
        told = compare([Path(word) for word in rest], test, correction)
    print(json.dumps(told, ensure_ascii=False))
    return EXIT_DONE


def _stage(words: Sequence[str]) -> int:
    """stage RUN_FOLDER STAGE_ID FOLDER PROCESSES: one rank of a stage, started by torchrun"""
    die_with_parent(signal.SIGKILL)
    _quiet()
    from pipelines.runs.run import run_rank

    return run_rank(Path(words[0]), words[1], Path(words[2]), int(words[3]))


def _join(words: Sequence[str]) -> int:
    """join: this host's share of every stage of an attempt that runs on several hosts"""
    if words:
        raise CommandError("join takes no arguments; what it joins is in its environment")
    _quiet()
    from pipelines.runs.distributed import join

    return join()


def _plan(words: Sequence[str]) -> int:
    """plan RECIPE [--json] [--flops-per-second N] [key=value …]"""
    from pipelines.core.load import load as load_recipe
    from pipelines.runs.planning.plan import plan

    as_json = "--json" in words
    rest = [word for word in words if word != "--json"]
    rate = _number(rest, "--flops-per-second")
    if not rest:
        raise CommandError("plan needs a recipe: plan RECIPE [--json] [key=value …]")
    recipe = load_recipe(rest[0], rest[1:])
    if recipe.matrix is not None:
        from pipelines.core.load import load_study
        from pipelines.studies.plan import plan_study

        whole = plan_study(load_study(rest[0], rest[1:]), flops_per_second=rate)
        print(json.dumps(whole.to_json(), indent=2) if as_json else "\n".join(whole.lines()))
        return EXIT_DONE
    found = plan(recipe, flops_per_second=rate)
    print(json.dumps(found.to_json(), indent=2) if as_json else "\n".join(found.lines()))
    return EXIT_DONE


def _gc(words: Sequence[str]) -> int:
    """gc [--dry-run] [--older-than DAYS]"""
    from pipelines.core.files import home
    from pipelines.runs.workspace import collect

    older = _number(list(words), "--older-than") or 0.0
    print(json.dumps(collect(home(), "--dry-run" in words, older).to_json()))
    return EXIT_DONE


def _attention(words: Sequence[str]) -> int:
    """attention REQUEST: one JSON object with the fields of attention_maps.Request"""
    return _answer("attention", "pipelines.commands.attention", words)


def _generate(words: Sequence[str]) -> int:
    """generate REQUEST: one JSON object with the fields of generation.Request"""
    return _answer("generate", "pipelines.commands.generate", words)


def _evaluate(words: Sequence[str]) -> int:
    """evaluate REQUEST: one JSON object with the fields of evaluating.Request"""
    return _answer("evaluate", "pipelines.commands.evaluate", words)


def _score(words: Sequence[str]) -> int:
    """score REQUEST: one JSON object with the fields of evaluation.score_files.Request"""
    return _answer("score", "pipelines.commands.score", words)


def _predict(words: Sequence[str]) -> int:
    """predict REQUEST: one JSON object with the fields of predicting.Request"""
    return _answer("predict", "pipelines.commands.predict", words)


def _publish(words: Sequence[str]) -> int:
    """publish REQUEST: one JSON object with the fields of publishing_again.Request"""
    return _answer("publish", "pipelines.commands.publish", words)


def _harness(words: Sequence[str]) -> int:
    """harness REQUEST: one JSON object with the fields of harness.Request"""
    return _answer("harness", "pipelines.commands.harness", words)


def _data(words: Sequence[str]) -> int:
    """data REQUEST: one JSON object with the fields of data_view.Request"""
    return _answer("data", "pipelines.commands.show_data", words)


def _answer(verb: str, module: str, words: Sequence[str]) -> int:
    """Print one JSON object on standard output: the answer, or the error. Everything else goes to standard error."""
    from pipelines.core.errors import understood
    from pipelines.core.signals import StopSignal, stop_on_signals

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


def _word(words: list[str], option: str, kind: str = "value") -> str | None:
    """Take `option WORD` out of `words`."""
    if option not in words:
        return None
    place = words.index(option)
    if place + 1 == len(words):
        raise CommandError(f"{option} needs a {kind}")
    value = words[place + 1]
    del words[place : place + 2]
    return value


def _number(words: list[str], option: str) -> float | None:
    """Take `option NUMBER` out of `words`."""
    value = _word(words, option, "number")
    try:
        return None if value is None else float(value)
    except ValueError:
        raise CommandError(f"{option} needs a number") from None


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "resume": _resume,
    "study": _study,
    "compare": _compare,
    "stage": _stage,
    "join": _join,
    "plan": _plan,
    "gc": _gc,
    "attention": _attention,
    "generate": _generate,
    "harness": _harness,
    "evaluate": _evaluate,
    "score": _score,
    "predict": _predict,
    "publish": _publish,
    "data": _data,
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
