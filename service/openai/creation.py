"""Making a fine-tuning job: the request checked, the grader made the reward, the recipe submitted.

The training file's shape is held against the method. The grader of `reinforcement` becomes the reward `grader` of the
recipe, with the project's models that it asks; what it reads of a row must be there in every row, which is looked at
before a job is made.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipelines.core.grader_templates import Path as TemplatePath
from pipelines.core.grader_templates import Unfilled
from pipelines.core.graders import Grader
from pipelines.core.model_abilities import DESCRIPTIONS, abilities_of
from service.api.context import Caller, Service, refuse_without_isolation
from service.api.problems import Problem
from service.jobs.job import Job
from service.openai.grading import grader_of, plain, with_models
from service.openai.recipes import (
    METHODS,
    Auto,
    Base,
    base_of,
    dpo_recipe,
    refusal,
    reinforcement_recipe,
    resolve,
    scratch,
    supervised_recipe,
)
from service.openai.training_files import lines
from service.store.errors import NotFound
from service.store.files import READY, File
from service.submission import Wish, submit
from service.uploads import file_path

GRADER = "method.reinforcement.grader"
LOOKED_AT = 10_000
"""Rows of a file that are held against what the grader reads."""
TOLD = 5
"""Lines that are told where it is not there."""
PURPOSE = "fine-tune"
SEEDS = 2**31


class Hyperparameters(BaseModel):
    """OpenAI's words; `auto` and nothing mean the same."""

    model_config = ConfigDict(extra="forbid")

    n_epochs: Annotated[int, Field(ge=1, le=1000)] | Auto | None = None
    batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto | None = None
    learning_rate_multiplier: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | Auto | None = None


class Supervised(BaseModel):
    """Settings of the method supervised."""

    model_config = ConfigDict(extra="forbid")

    hyperparameters: Hyperparameters | None = None


class PreferenceHyperparameters(Hyperparameters):
    """Those of dpo."""

    beta: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | Auto | None = None


class Preference(BaseModel):
    """Settings of the method dpo."""

    model_config = ConfigDict(extra="forbid")

    hyperparameters: PreferenceHyperparameters | None = None


class ReinforcementHyperparameters(Hyperparameters):
    """Those of reinforcement. What OpenAI's own machines need beside them is taken and has no effect when it is
    `auto`."""

    compute_multiplier: Auto | None = None
    eval_interval: Auto | None = None
    eval_samples: Auto | None = None
    reasoning_effort: Literal["default"] | None = None


class Reinforcement(BaseModel):
    """Settings of the method reinforcement."""

    model_config = ConfigDict(extra="forbid")

    grader: dict[str, Any]
    hyperparameters: ReinforcementHyperparameters | None = None
    response_format: dict[str, Any] | None = None


class Method(BaseModel):
    """How the model learns."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["supervised", "dpo", "reinforcement"] = "supervised"
    supervised: Supervised | None = None
    dpo: Preference | None = None
    reinforcement: Reinforcement | None = None


class NewJob(BaseModel):
    """A fine-tuning job to make."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        min_length=1,
        max_length=250,
        pattern=r"^[^\x00]*$",
        description="scratch/<preset>, a published model, or a Hub checkpoint owner/name.",
    )
    training_file: str = Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$")
    validation_file: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")
    suffix: str | None = Field(None, max_length=64)
    seed: int | None = Field(None, ge=0, lt=SEEDS)
    hyperparameters: Hyperparameters | None = Field(
        None, description="The older place of method.supervised.hyperparameters."
    )
    method: Method | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        None, max_length=16
    )
    integrations: list[dict[str, Any]] | None = None


def create(service: Service, caller: Caller, request: NewJob, key: str | None) -> Job:
    """Submit the job. Raises Problem with the parameter that is wrong."""
    refuse_without_isolation(service, caller)
    method = request.method.type if request.method else "supervised"
    refused = refusal(method)
    if refused is not None:
        raise Problem(400, f"{refused[:1].upper()}{refused[1:]}.", "unsupported_method", param="method")
    if request.integrations:
        raise Problem(
            400,
            "Integrations are not offered: the metrics are in the job's events and in its result file.",
            "unsupported_integration",
            param="integrations",
        )
    how = METHODS[method]
    shape = how.shape
    given_grader = _grader(request) if method == "reinforcement" else None
    training = _file(service, caller, request.training_file, "training_file", shape)
    validation = (
        _file(service, caller, request.validation_file, "validation_file", shape) if request.validation_file else None
    )
    base = _base(service, caller, request.model, method)
    if base.from_scratch and not how.from_scratch:
        raise Problem(
            400,
            f"'{request.model}' has learnt nothing yet, and {method} improves a model that answers: fine-tune it by "
            "supervised first, then name what that made.",
            "unsupported_model",
            param="model",
        )
    reward = None if given_grader is None else _reward(service, caller, given_grader, training)
    given = _given(request)
    rows, characters = int(training.openai.get("rows", 1)), int(training.openai.get("characters", 0))
    beta = given.beta if isinstance(given, PreferenceHyperparameters) else None
    numbers = resolve(base, rows, given.n_epochs, given.batch_size, given.learning_rate_multiplier, beta, how)
    unique = hashlib.sha256(f"{caller.project} {key}".encode()).hexdigest()[:10] if key else secrets.token_hex(5)
    seed = request.seed if request.seed is not None else int(unique, 16) % SEEDS
    suffix = _suffix(request.suffix)
    name = f"ft:{base.short}:{caller.project}:{suffix}:{unique}"
    tested = validation.id if validation else None
    if reward is not None:
        recipe = reinforcement_recipe(f"ft-{unique}", base, training.id, reward, numbers, seed, name)
    elif method == "dpo":
        recipe = dpo_recipe(f"ft-{unique}", base, training.id, tested, numbers, seed, name)
    else:
        recipe = supervised_recipe(f"ft-{unique}", base, training.id, tested, numbers, seed, characters, name)
    openai = {
        "model": request.model,
        "training_file": training.id,
        "validation_file": tested,
        "suffix": request.suffix,
        "seed": seed,
        "metadata": request.metadata or {},
        "fine_tuned_model": name,
        "method": method,
        "hyperparameters": numbers.as_openai(),
        **({"grader": request.method.reinforcement.grader} if request.method and request.method.reinforcement else {}),
    }
    job, created = submit(
        service.store,
        service.settings,
        service.checker,
        caller.project,
        caller.token,
        Wish(recipe, idempotency_key=key),
        "openai",
        openai,
    )
    if created:
        service.wake()
    return job


def _given(request: NewJob) -> Hyperparameters:
    """The hyperparameters, from the method's own place or from the older one. Raises Problem where they stand with
    another method."""
    method = request.method or Method()
    for name in METHODS:
        if name != method.type and getattr(method, name) is not None:
            raise Problem(
                400,
                f"method.{name} is given, but method.type is '{method.type}'; give the settings of that method.",
                "invalid_request",
                param=f"method.{name}",
            )
    own: Supervised | Preference | Reinforcement | None = getattr(method, method.type)
    return (own.hyperparameters if own is not None else None) or request.hyperparameters or Hyperparameters()


def _grader(request: NewJob) -> Grader:
    """The grader that was given. Raises Problem where there is none, or where it stands with what is not offered."""
    settings = request.method.reinforcement if request.method else None
    if settings is None:
        raise Problem(400, f"The method 'reinforcement' needs a grader: {GRADER}.", "missing_grader", param=GRADER)
    if settings.response_format is not None:
        raise Problem(
            400,
            "response_format is not offered: answers are plain text.",
            "unsupported_response_format",
            param="method.reinforcement.response_format",
        )
    if request.validation_file is not None:
        raise Problem(
            400,
            "reinforcement takes no validation file here: rewards of every step are in the job's metrics; leave it "
            "out.",
            "unsupported_validation_file",
            param="validation_file",
        )
    return grader_of(settings.grader, GRADER)


def _reward(service: Service, caller: Caller, given: Grader, training: File) -> dict[str, Any]:
    """The recipe's reward behind a grader. Raises Problem."""
    grader = with_models(service, caller, given, GRADER, own=True)
    _refuse_lacking(service, training, grader.paths)
    models = dict.fromkeys(str(name) for name, _ in grader.models())
    asked = [{"name": name, "checkpoint": f"model:{name}"} for name in models]
    return {"name": "grader", "grader": plain(grader), **({"models": asked} if asked else {})}


def _refuse_lacking(service: Service, training: File, paths: tuple[TemplatePath, ...]) -> None:
    """Raise Problem where rows of the file lack what the grader reads of them."""
    read = [path for path in dict.fromkeys(paths) if path.namespace == "item"]
    if not read:
        return
    lacking: dict[str, list[int]] = {}
    with open(file_path(service.settings, training), "rb") as file:
        for number, line in lines(file):
            if number > LOOKED_AT:
                break
            row = json.loads(line.decode("utf-8-sig")) if isinstance(line, bytes) else {}
            for path in read:
                try:
                    path.value({"item": row})
                except Unfilled:
                    lacking.setdefault(path.written, []).append(number)
    if lacking:
        told = [
            f"{path} in {len(rows)} rows (line {', '.join(map(str, rows[:TOLD]))}{', …' if len(rows) > TOLD else ''})"
            for path, rows in lacking.items()
        ]
        raise Problem(
            400,
            f"The grader reads what the training file lacks: {'; '.join(told)}.",
            "invalid_file_format",
            param="training_file",
        )


def _suffix(given: str | None) -> str:
    """The suffix in letters that a model's name may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", given or "").strip("-.")[:40].lower()


def _base(service: Service, caller: Caller, model: str, method: str) -> Base:
    try:
        abilities = abilities_of(Path(service.store.model(caller.project, model).path))
        published: str | None = model  # an alias of it is resolved, and written down, when the job is submitted
    except NotFound:
        abilities = published = None
    kind = abilities.kind if abilities is not None else "causal"
    if kind != "causal" and (kind != "seq2seq" or method == "supervised"):
        fit = "continue texts" if method == "supervised" else "write texts"
        raise Problem(
            400,
            f"The model '{model}' {DESCRIPTIONS[kind]}, and {method} takes models that {fit}: decoders of the project "
            "or of the Hub, or scratch/<preset> for supervised. A recipe can tune the others.",
            "unsupported_model",
            param="model",
        )
    base = base_of(model, published)
    if base is None:
        raise Problem(
            400,
            f"There is no model '{model}'. Train one from scratch ({', '.join(scratch())}), name a published one, or "
            "a Hub checkpoint owner/name.",
            "model_not_found",
            param="model",
        )
    return base


def _file(service: Service, caller: Caller, identifier: str, param: str, shape: str) -> File:
    try:
        file = service.store.file(identifier, caller.project)
    except NotFound:
        raise Problem(400, f"There is no file '{identifier}'.", "invalid_file", param=param) from None
    if file.purpose != PURPOSE or file.state != READY or "shape" not in file.openai:
        raise Problem(
            400,
            f"File '{identifier}' was not uploaded to /v1/files with purpose '{PURPOSE}'.",
            "invalid_file",
            param=param,
        )
    if file.openai.get("shape") != shape:
        raise Problem(
            400,
            f"File '{identifier}' holds {file.openai.get('shape')} rows; this method needs {shape} rows.",
            "invalid_file_format",
            param=param,
        )
    return file
