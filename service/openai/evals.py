"""The routes of /v1/evals: what is measured, its runs, and what each row came to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from service.api.context import ServiceOf, Submitter, Viewer, apart
from service.api.jobs import clean
from service.api.problems import Problem
from service.openai.eval_requests import (
    ChangedEval,
    NewEval,
    NewRun,
    config_of,
    criteria_of,
    rows_of,
    source_of,
    unknown_column,
)
from service.openai.grading import asked
from service.openai.objects import ERROR, listed
from service.safety.redaction import Redactor
from service.store.errors import NotFound
from service.store.evals import ERRORED, FAILED_ITEM, PASSED, Eval, EvalItem, EvalRun

router = APIRouter(
    prefix="/evals", tags=["openai"], responses=dict.fromkeys((400, 401, 403, 404, 409, 413, 422, 429), ERROR)
)
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=100)]
Order = Literal["asc", "desc"]
DONE = (PASSED, FAILED_ITEM, ERRORED)


# ---- objects ---------------------------------------------------------------------------------------------------------


def eval_object(of: Eval) -> dict[str, Any]:
    """An `eval`."""
    config = of.data_source_config
    properties: dict[str, Any] = {"item": config.get("item_schema", {})}
    if config.get("include_sample_schema"):
        properties["sample"] = {"type": "object", "properties": {"output_text": {"type": "string"}}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "object": "eval",
        "id": of.id,
        "name": of.name,
        "created_at": int(of.created),
        "data_source_config": {"type": "custom", "schema": schema},
        "testing_criteria": list(of.testing_criteria),
        "metadata": dict(of.metadata),
    }


def run_object(run: EvalRun, redactor: Redactor, base_url: str) -> dict[str, Any]:
    """An `eval.run`."""
    counts = run.summary["counts"]
    usage = [
        {
            "model_name": name,
            "invocation_count": each["calls"],
            "prompt_tokens": each["prompt_tokens"],
            "completion_tokens": each["completion_tokens"],
            "total_tokens": each["prompt_tokens"] + each["completion_tokens"],
            "cached_tokens": 0,
        }
        for name, each in run.summary["usage"].items()
    ]
    return {
        "object": "eval.run",
        "id": run.id,
        "eval_id": run.eval,
        "name": run.name,
        "status": run.state,
        "model": run.model,
        "created_at": int(run.created),
        "data_source": dict(run.data_source),
        "metadata": dict(run.metadata),
        "report_url": f"{base_url}v1/evals/{run.eval}/runs/{run.id}/output_items",
        "error": {
            "code": str(run.error.get("code", "")),
            "message": redactor.text(str(run.error.get("message", ""))),
        },
        "result_counts": {
            "passed": counts[PASSED],
            "failed": counts[FAILED_ITEM],
            "errored": counts[ERRORED],
            "total": run.items,
        },
        "per_testing_criteria_results": [
            {"testing_criteria": name, **each} for name, each in run.summary["criteria"].items()
        ],
        "per_model_usage": usage,
    }


def item_object(item: EvalItem, run: EvalRun) -> dict[str, Any]:
    """An `eval.run.output_item`."""
    return {
        "object": "eval.run.output_item",
        "id": f"{run.id}-{item.number}",
        "run_id": run.id,
        "eval_id": run.eval,
        "created_at": int(item.done or run.created),
        "status": item.state,
        "datasource_item_id": item.number,
        "datasource_item": dict(item.item),
        "results": list(item.results),
        "sample": dict(item.sample),
    }


# ---- evals -----------------------------------------------------------------------------------------------------------


@router.post("")
def create(body: NewEval, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Say what is measured, and by which graders."""
    config = config_of(body.data_source_config)
    criteria = criteria_of(service, caller, body.testing_criteria)
    for at, each in enumerate(criteria):
        if (path := unknown_column(each, config["item_schema"])) is not None:
            raise Problem(
                400,
                f"testing_criteria[{at}] reads {path}, which item_schema does not have.",
                "invalid_grader",
                param=f"testing_criteria[{at}]",
            )
    name = clean(body.name) or "Eval"
    made = service.store.add_eval(
        caller.project, name, config, [each.document() for each in criteria], body.metadata or {}
    )
    return eval_object(made)


@router.get("")
def evals(
    service: ServiceOf,
    caller: Viewer,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    order_by: Literal["created_at", "updated_at"] = "created_at",
) -> dict[str, Any]:
    """The evals of the project."""
    rows = service.store.evals(
        caller.scope,
        after=clean(after),
        limit=limit + 1,
        newest_first=order == "desc",
        by=order_by.removesuffix("_at"),
    )
    return listed([eval_object(row) for row in rows[:limit]], len(rows) > limit)


@router.get("/{eval_id}")
def retrieve(eval_id: str, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """One eval."""
    return eval_object(service.store.eval(_id(eval_id), caller.scope))


@router.post("/{eval_id}")
def change(eval_id: str, body: ChangedEval, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Give an eval another name or other metadata."""
    return eval_object(service.store.update_eval(_id(eval_id), caller.scope, clean(body.name) or None, body.metadata))


@router.delete("/{eval_id}")
def delete(eval_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Delete an eval with its runs."""
    gone = service.store.delete_eval(_id(eval_id), caller.scope)
    return {"object": "eval.deleted", "deleted": True, "eval_id": gone.id}


# ---- runs ------------------------------------------------------------------------------------------------------------


@apart("fetches", router.post("/{eval_id}/runs"))
def create_run(eval_id: str, body: NewRun, request: Request, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Measure a model, or answers that are there."""
    of = service.store.eval(_id(eval_id), caller.scope)
    source = source_of(body.data_source)
    criteria = criteria_of(service, caller, of.testing_criteria)
    if source.model is not None:
        asked(service, caller, source.model, "chat", "data_source.model")
    rows = rows_of(service, caller, source, of.data_source_config.get("item_schema", {}), criteria)
    kept = source.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    if source.source.type == "file_content":  # the rows stand in tables of their own
        kept["source"] = {"type": "file_content", "content": []}
    made = service.store.add_run(
        of,
        clean(body.name) or of.name,
        kept,
        body.metadata or {},
        source.model or "",
        [(row.item, row.given) for row in rows],
        caller.role,
    )
    return run_object(made, service.redactor, str(request.base_url))


@router.get("/{eval_id}/runs")
def runs(
    eval_id: str,
    request: Request,
    service: ServiceOf,
    caller: Viewer,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    status: Annotated[Literal["queued", "in_progress", "completed", "canceled", "failed"] | None, Query()] = None,
) -> dict[str, Any]:
    """The runs of an eval."""
    rows = service.store.runs(
        _id(eval_id),
        caller.scope,
        after=clean(after),
        limit=limit + 1,
        newest_first=order == "desc",
        state=status,
    )
    base_url = str(request.base_url)
    return listed([run_object(row, service.redactor, base_url) for row in rows[:limit]], len(rows) > limit)


@router.get("/{eval_id}/runs/{run_id}")
def retrieve_run(eval_id: str, run_id: str, request: Request, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """One run, with its counts so far."""
    run = service.store.run(_id(run_id), _id(eval_id), caller.scope)
    return run_object(run, service.redactor, str(request.base_url))


@router.post("/{eval_id}/runs/{run_id}/cancel")
@router.post("/{eval_id}/runs/{run_id}")
def cancel_run(eval_id: str, run_id: str, request: Request, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Stop a run for good; what it measured stays."""
    run = service.store.cancel_run(_id(run_id), _id(eval_id), caller.scope)
    return run_object(run, service.redactor, str(request.base_url))


@router.delete("/{eval_id}/runs/{run_id}")
def delete_run(eval_id: str, run_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Delete a run with its rows."""
    gone = service.store.delete_run(_id(run_id), _id(eval_id), caller.scope)
    return {"object": "eval.run.deleted", "deleted": True, "run_id": gone.id}


@apart("readings", router.get("/{eval_id}/runs/{run_id}/output_items"))
def output_items(
    eval_id: str,
    run_id: str,
    service: ServiceOf,
    caller: Viewer,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    status: Annotated[Literal["pass", "fail", "error"] | None, Query()] = None,
) -> dict[str, Any]:
    """What the rows that are done came to."""
    run = service.store.run(_id(run_id), _id(eval_id), caller.scope)
    rows = service.store.eval_items(
        run.id,
        after=None if after is None else _number(after, run),
        limit=limit + 1,
        newest_first=order == "desc",
        states=DONE if status is None else (status,),
    )
    return listed([item_object(row, run) for row in rows[:limit]], len(rows) > limit)


@router.get("/{eval_id}/runs/{run_id}/output_items/{item_id}")
def output_item(eval_id: str, run_id: str, item_id: str, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """What one row came to."""
    run = service.store.run(_id(run_id), _id(eval_id), caller.scope)
    return item_object(service.store.eval_item(run.id, _number(item_id, run)), run)


def _id(text: str) -> str:
    return clean(text) or ""


def _number(item_id: str, run: EvalRun) -> int:
    run_id, _, number = item_id.rpartition("-")
    if run_id != run.id or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise NotFound("output item", item_id)
    return int(number)
