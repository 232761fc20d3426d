"""`finery publish`: publish the model of a finished run or stage, as a publish stage would. A child process does the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.errors import EXIT_DONE, CommandError
from service.cli.answer import ask, refuse


@dataclass(frozen=True)
class Question:
    """What is asked, in the words of the child."""

    source: str
    to: str
    require: dict[str, str]
    settings: dict[str, Any]


def requirements(given: Sequence[str]) -> dict[str, str]:
    """`glue/mrpc.f1>=0.8` or `glue/mrpc.f1=">= 0.8"` as a key and what it must fulfil. Raises CommandError."""
    found: dict[str, str] = {}
    for each in given:
        at = min((place for sign in "<>=" if (place := each.find(sign)) > 0), default=0)
        key, rest = each[:at].strip(), each[at:].strip()
        assigned = rest.startswith("===") or (rest.startswith("=") and not rest.startswith("=="))  # KEY="== 1" and KEY=">= 1", not KEY==1
        value = rest[1:].strip().strip("\"'").strip() if assigned else rest
        if not key or not value or key[0] in "<>=":
            raise CommandError(f"--require '{each}' is no requirement; write it as glue/mrpc.f1=\">= 0.8\"")
        found[key] = value
    return found


def publish(question: Question, as_json: bool) -> int:
    """Publish, and say where it lies. Returns the exit code."""
    answer = ask("publish", asdict(question), "Writing the checkpoint, then proving that it loads …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **answer.data}, ensure_ascii=False))
        return EXIT_DONE
    for warning in answer.data["warnings"]:
        print(warning, file=sys.stderr)
    print(f"  Published   {answer.data['location']}   the model of '{answer.data['model']}'")
    return EXIT_DONE
