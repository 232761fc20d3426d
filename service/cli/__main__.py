"""The command `finery`, also as `python -m service.cli`: its verbs, and how each answer becomes an exit code.

Exit codes: 0 done, 1 failed, 2 the recipe or the command is wrong, 75 stopped early and resumable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, FineryError, RecipeError
from service.cli import local_verbs, model_verbs, service_verbs  # noqa: F401  they add themselves to the application
from service.cli.app import app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code; usage errors end the process with 2 as typer does."""
    if sys.platform == "win32":
        print("Finery does not run on Windows; use Linux, for instance through WSL 2.", file=sys.stderr)
        return EXIT_FAILED
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins reads every installed package
    try:
        with only(given[0] if given else ""):
            app(args=given, prog_name="finery")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except FineryError as error:
        if "--json" in given:
            print(json.dumps(_refusal(error), ensure_ascii=False))
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        sys.stderr.close()
        return EXIT_DONE
    return EXIT_DONE


@contextmanager
def only(verb: str) -> Iterator[None]:
    """Build the options of this verb alone, where there is such a verb: those of all take longer than most answers."""
    every = app.registered_commands
    named = [each for each in every if (each.name or getattr(each.callback, "__name__", "")) == verb]
    app.registered_commands = named or every
    try:
        yield
    finally:
        app.registered_commands = every


def _refusal(error: FineryError) -> dict[str, object]:
    status = "refused" if error.exit_code == EXIT_USAGE else "failed"
    answer: dict[str, object] = {"status": status, "exit_code": error.exit_code}
    answer["error"] = {"message": str(error), "reason": error.reason, "stage": None}
    if isinstance(error, RecipeError):
        answer["mistakes"] = [
            {"file": each.file, "line": each.line, "key": each.key, "message": each.message} for each in error.mistakes
        ]
    return answer


if __name__ == "__main__":
    sys.exit(main())
