"""Predictions of published models: classes, numbers, tags, answers in a context and choices among options."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from service.api.context import ServiceOf, Submitter
from service.api.models import Fingerprint
from service.api.problems import described
from service.serving.asking import last_word, servable, while_heard

router = APIRouter(tags=["models"], responses=described())
MOST_INPUTS = 1024


class PredictBody(BaseModel):
    """Inputs to predict for."""

    model_config = ConfigDict(extra="forbid")

    inputs: list[str | list[str] | dict[str, str | list[str]]] = Field(
        min_length=1,
        max_length=MOST_INPUTS,
        description="Texts, lists of words for taggers, or objects with the columns that the model was trained on.",
    )
    max_length: int | None = Field(None, ge=8, le=131072, description="Tokens that are read of each input at most.")


class Predictions(BaseModel):
    """What a model says of each input, in their order."""

    model: str
    fingerprint: str
    predictions: list[dict[str, Any]] = Field(
        description="`index`, `prediction`, and what else is known: probabilities, the place of an answer."
    )
    warnings: list[str]


@router.post("/models/{name}/predict", responses=described(404, 503))
async def predict(
    name: str,
    body: PredictBody,
    request: Request,
    service: ServiceOf,
    caller: Submitter,
    fingerprint: Fingerprint = None,
) -> Predictions:
    """What a classifier, a tagger, a reader or a chooser says, as `finery predict` says it."""
    model = await run_in_threadpool(servable, service, caller, name, "predict", fingerprint)
    end = await while_heard(request, last_word(service.served, caller.token, model, "predict", body.model_dump()))
    return Predictions(
        model=model.name,
        fingerprint=model.fingerprint,
        predictions=end["predictions"],
        warnings=[service.redactor.text(str(each)) for each in end["warnings"]],
    )
