"""Two versions of a model on the same examples, as `finery compare` holds publications against each other.

A job wrote what is read, so it is read by a process that is isolated as attempts are: it sees both folders, has bounds
on its memory and its time, and ends with the server. What it says is kept in the store, for versions do not change.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.api.context import Caller, Service, refuse_without_isolation
from service.api.problems import Problem
from service.attempts.folders import open_regular
from service.attempts.preparing import PIPELINES, sandbox_around
from service.executors.protocol import AttemptSpec, ExecutorError, Exited, Placement, Running
from service.executors.records import read_console
from service.jobs.job import new_id
from service.serving.process import bare_environment
from service.store.errors import NotFound
from service.store.models import PublishedModel
from service.store.projects import may

OUTCOMES = "outcomes.parquet"
"""What a publication says of each example."""
MOST_BYTES = 1 << 30
"""Of both of them together."""
SECONDS = 300.0
MEMORY = 4 << 30
LOG_BYTES = 8 << 20
LOOK_SECONDS = 0.05
MOST_ROWS = 200
"""Scores that are kept of one comparison."""


def compared(
    service: Service,
    caller: Caller,
    model: PublishedModel,
    against: PublishedModel,
    pipelines: Sequence[str] = PIPELINES,
) -> Mapping[str, Any]:
    """The scores of both, and their paired difference: `{"benchmarks": [{"benchmark", "same_examples", "examples",
    "mcnemar", "metrics": {"f1": {"model", "against", "difference"}}}]}`; a difference has `value`, `low`, `high`, the
    p-values by test, and the verdict on `model`. A viewer gets what was compared before, and starts nothing. Raises
    Problem, NotFound."""
    known = service.store.comparison(model.id, against.id)
    if known is not None:
        return known
    for each in (model, against):
        _check(each)
    if not may(caller.role, "submitter"):
        raise Problem(
            403,
            f"'{model.reference}' and '{against.reference}' have not been compared yet, and the token's role is "
            f"{caller.role}: a submitter must ask for the comparison first; then it is kept, and everybody sees it.",
            "forbidden",
        )
    refuse_without_isolation(service, caller)
    document = _plain(_asked(service, model, against, pipelines))
    service.store.keep_comparison(model.id, against.id, document)
    return document


def _check(model: PublishedModel) -> None:
    """Raise Problem where a version cannot be compared on examples, with what to do about it."""
    folder = Path(model.path)
    if not folder.is_dir():
        raise NotFound("folder of model", model.reference)
    try:
        with open_regular(folder / OUTCOMES, folder) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError:
        raise Problem(
            409,
            f"'{model.reference}' was published without its outcomes on each example, so no difference can be tested; "
            f"submit the recipe of its job '{model.job}' again: what is trained is reused, and the version that comes "
            "out has them.",
            "no_outcomes",
        ) from None
    if size > MOST_BYTES // 2:
        raise Problem(
            409,
            f"The outcomes of '{model.reference}' have {size:,} bytes, too many to be compared here.",
            "no_outcomes",
        )


def _asked(
    service: Service, model: PublishedModel, against: PublishedModel, pipelines: Sequence[str]
) -> Mapping[str, Any]:
    """What the process prints. Raises Problem."""
    settings, executor = service.settings, service.served.executor()
    identifier = new_id("comparing")
    place = settings.serving / identifier
    work, record = place / "work", place / "record"
    folders = [Path(against.path), Path(model.path)]
    environment = {**bare_environment(work, executor), "OMP_NUM_THREADS": "1"}
    host = executor.capacity()[0]
    try:
        work.mkdir(parents=True, mode=0o700)
        handle = executor.start(
            AttemptSpec(
                attempt_id=identifier,
                job_id=identifier,
                fencing_token=1,
                command=(*pipelines, "compare", *map(str, folders)),
                folder=work,
                record=record,
                environment=environment,
                placements=(Placement(host.name, (), 1, MEMORY),),
                fence=place,
                log_bytes=LOG_BYTES,
                log_files=1,
                sandbox=sandbox_around(settings, folders, [work]),
            )
        )
        try:
            end = time.monotonic() + SECONDS
            while isinstance(condition := executor.poll(handle), Running) and time.monotonic() < end:
                time.sleep(LOOK_SECONDS)
        finally:
            executor.kill(handle)
        printed = b"".join(read_console(record)).decode(errors="replace").splitlines()
    except (OSError, ExecutorError) as error:
        raise Problem(503, f"The comparison could not be started: {error}", "not_compared") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if isinstance(condition, Running):
        raise Problem(503, f"The comparison took more than {SECONDS:.0f} s and was ended.", "not_compared")
    if not isinstance(condition, Exited) or condition.code != 0:
        raise _refusal(printed, model, against)
    for line in reversed(printed):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
            except ValueError:
                break
            if isinstance(answer, dict):
                return answer
    raise Problem(503, "The comparison ended without an answer; try again.", "not_compared")


def _refusal(printed: Sequence[str], model: PublishedModel, against: PublishedModel) -> Problem:
    """The process's own sentence, in the names of the versions."""
    said = [line.removeprefix("finery: ") for line in printed if line.startswith("finery: ")]
    sentence = said[-1][:1000] if said else "the process that reads them ended without a word"
    for each in (model, against):
        place = Path(each.path)
        for form in (str(place), "/".join(place.parts[-3:]), "/".join(place.parts[-2:]), place.name):
            sentence = sentence.replace(form, each.reference)
    return Problem(409, f"'{model.reference}' and '{against.reference}' cannot be compared: {sentence}", "not_compared")


def _plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as it is kept: what a hostile publication could have put there is held to its types."""
    benchmarks = []
    left = MOST_ROWS
    for section in answer.get("benchmarks") or ():
        reference, model = section["models"][:2]
        rows = dict(list(_rows(model, reference))[:left])
        left -= len(rows)
        mcnemar = model.get("mcnemar")
        benchmarks.append(
            {
                "benchmark": str(section["benchmark"])[:200],
                "same_examples": bool(model.get("same_examples")),
                "examples": int(model.get("examples") or 0),
                "mcnemar": mcnemar and {key: _number(mcnemar.get(key)) for key in ("only_here", "only_reference")},
                "metrics": rows,
            }
        )
    return {"benchmarks": benchmarks}


def _rows(model: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for metric, each in model["metrics"].items():
        other = reference["metrics"].get(metric)
        if other is None:
            continue
        tested = each.get("difference")
        difference = tested and {
            "value": _number(tested["value"]),
            "low": _number(tested["interval"][0]),
            "high": _number(tested["interval"][1]),
            "p": {str(test): _number(p_value) for test, p_value in tested["p"].items()},
            "verdict": str(tested["verdict"])[:40],
            "verdict_alone": str(tested["verdict_alone"])[:40],
        }
        yield (
            str(metric)[:200],
            {"model": _number(each["value"]), "against": _number(other["value"]), "difference": difference},
        )


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None  # type: ignore[arg-type]
