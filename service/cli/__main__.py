"""The command `finery`, also as `python -m service.cli`: its verbs, and how each answer becomes an exit code.

Exit codes: 0 done, 1 failed, 2 the recipe or the command is wrong, 75 stopped early and resumable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, CommandError, FineryError, RecipeError, understood
from service.cli import local_verbs, model_verbs, service_verbs  # noqa: F401  they add themselves to the application
from service.cli.app import app, failure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code; usage errors end the process with 2 as typer does."""
    if sys.platform == "win32":
        print("Finery does not run on Windows; use Linux, for instance through WSL 2.", file=sys.stderr)
        return EXIT_FAILED
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins reads every installed package
    try:
        with only(given[0] if given else ""):
            app(args=given, prog_name="finery")
    except SystemExit as ended:
        if as_json and (wrong := _wrong_usage(ended.__context__)) is not None:
            print(json.dumps(_refusal(wrong), ensure_ascii=False))
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except FineryError as error:
        if as_json:
            print(json.dumps(_refusal(error), ensure_ascii=False))
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        sys.stderr.close()
        return EXIT_DONE
    except Exception as error:  # nobody foresaw it: its trace goes to standard error
        if as_json:
            print(json.dumps(_refusal(understood(error)), ensure_ascii=False))
        raise
    return EXIT_DONE


@contextmanager
def only(verb: str) -> Iterator[None]:
    """Build the options of this verb alone, where there is such a verb: those of all take longer than most answers."""
    commands, groups = app.registered_commands, app.registered_groups
    named = [each for each in commands if (each.name or getattr(each.callback, "__name__", "")) == verb]
    group = [each for each in groups if each.name == verb]
    if named or group:
        app.registered_commands, app.registered_groups = named, group
    try:
        yield
    finally:
        app.registered_commands, app.registered_groups = commands, groups


def _wrong_usage(raised: BaseException | None) -> CommandError | None:
    """What typer has shown on standard error and ended the process for, if the words of the command are wrong."""
    if raised is None or not hasattr(raised, "format_message"):
        return None
    context = getattr(raised, "ctx", None)
    verb = context.command_path if context is not None else "finery"
    return CommandError(f"{raised.format_message().removesuffix('.')} ('{verb} -h' lists what it takes)")


def _refusal(error: FineryError) -> dict[str, object]:
    answer = failure(error.exit_code, str(error), error.reason)
    if isinstance(error, RecipeError):
        answer["mistakes"] = [
            {"file": each.file, "line": each.line, "key": each.key, "message": each.message} for each in error.mistakes
        ]
    return answer


if __name__ == "__main__":
    sys.exit(main())
