"""Making a fine-tuning job: the request checked, the file's shape held against the method, the recipe submitted."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.context import Caller, Service
from service.api.problems import Problem
from service.jobs.job import Job
from service.openai.bases import Base, base_of, scratch
from service.openai.hyperparameters import Auto, resolve
from service.openai.methods import METHODS, refusal
from service.openai.recipes import supervised_recipe
from service.store.errors import NotFound
from service.store.files import READY, File
from service.submission import Wish, submit

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


class Method(BaseModel):
    """How the model learns."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["supervised", "dpo", "reinforcement"] = "supervised"
    supervised: Supervised | None = None
    dpo: dict[str, Any] | None = None
    reinforcement: dict[str, Any] | None = None


class NewJob(BaseModel):
    """A fine-tuning job to make."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=250, pattern=r"^[^\x00]*$", description="scratch/<preset>, a published model, or a Hub checkpoint owner/name.")
    training_file: str = Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$")
    validation_file: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")
    suffix: str | None = Field(None, max_length=64)
    seed: int | None = Field(None, ge=0, lt=SEEDS)
    hyperparameters: Hyperparameters | None = Field(None, description="The older place of method.supervised.hyperparameters.")
    method: Method | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(None, max_length=16)
    integrations: list[dict[str, Any]] | None = None


def create(service: Service, caller: Caller, asked: NewJob, key: str | None) -> Job:
    """Submit the job. Raises Problem with the parameter that is wrong."""
    method = asked.method.type if asked.method else "supervised"
    refused = refusal(method)
    if refused is not None:
        raise Problem(400, f"{refused[:1].upper()}{refused[1:]}.", "unsupported_method", param="method")
    if asked.integrations:
        raise Problem(400, "Integrations are not offered: the metrics are in the job's events and in its result file.", "unsupported_integration", param="integrations")
    shape = METHODS[method].shape
    training = _file(service, caller, asked.training_file, "training_file", shape)
    validation = _file(service, caller, asked.validation_file, "validation_file", shape) if asked.validation_file else None
    base = _base(service, caller, asked.model)
    given = (asked.method.supervised.hyperparameters if asked.method and asked.method.supervised else None) or asked.hyperparameters or Hyperparameters()
    rows, characters = int(training.openai.get("rows", 1)), int(training.openai.get("characters", 0))
    numbers = resolve(base, rows, given.n_epochs, given.batch_size, given.learning_rate_multiplier)
    unique = hashlib.sha256(f"{caller.project} {key}".encode()).hexdigest()[:10] if key else secrets.token_hex(5)
    seed = asked.seed if asked.seed is not None else int(unique, 16) % SEEDS
    suffix = _suffix(asked.suffix)
    name = f"ft:{base.short}:{caller.project}:{suffix}:{unique}"
    recipe = supervised_recipe(f"ft-{unique}", base, training.id, validation.id if validation else None, numbers, seed, characters, name)
    kept = {
        "model": asked.model, "training_file": training.id, "validation_file": validation.id if validation else None, "suffix": asked.suffix,
        "seed": seed, "metadata": asked.metadata or {}, "fine_tuned_model": name, "method": method,
        "hyperparameters": {
            "n_epochs": numbers.n_epochs, "batch_size": numbers.batch_size, "learning_rate_multiplier": numbers.learning_rate_multiplier,
        },
    }  # fmt: skip
    job, created = submit(service.store, service.settings, caller.project, caller.token, Wish(recipe, idempotency_key=key), "openai", kept)
    if created:
        service.wake()
    return job


def _suffix(given: str | None) -> str:
    """The suffix in letters that a model's name may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", given or "").strip("-.")[:40].lower()


def _base(service: Service, caller: Caller, model: str) -> Base:
    try:
        published = service.store.model(caller.project, model).name
    except NotFound:
        published = None
    base = base_of(model, published)
    if base is None:
        raise Problem(400, f"There is no model '{model}'. Train one from scratch ({', '.join(scratch())}), name a published one, or a Hub checkpoint owner/name.", "model_not_found", param="model")
    return base


def _file(service: Service, caller: Caller, identifier: str, param: str, shape: str) -> File:
    try:
        file = service.store.file(identifier, caller.project)
    except NotFound:
        raise Problem(400, f"There is no file '{identifier}'.", "invalid_file", param=param) from None
    if file.purpose != PURPOSE or file.state != READY or "shape" not in file.openai:
        raise Problem(400, f"File '{identifier}' was not uploaded to /v1/files with purpose '{PURPOSE}'.", "invalid_file", param=param)
    if file.openai.get("shape") != shape:
        raise Problem(400, f"File '{identifier}' holds {file.openai.get('shape')} rows; this method needs {shape} rows.", "invalid_file_format", param=param)
    return file
