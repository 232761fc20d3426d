"""Making a fine-tuning job: the request checked, graders made rewards, the recipe submitted.

The training file's shape is held against the method. Graders that have a counterpart among the rewards are translated,
the others are refused with the reason:

string_check   the reward `pattern`: `eq`, `ne`, `like` and `ilike` against a fixed text, white space around an answer
               left aside
multi          the reward `weighted`: graders added up, each times a number

A reward of Finery sees the prompt and the completion of a row and nothing else of it, so a grader that reads
`{{item.…}}` has none. `python` would run code on the server. `score_model` and `label_model` put questions of the
user's own to a model of OpenAI, and `text_similarity` compares with a text of the row.
"""

from __future__ import annotations

import ast
import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.context import Caller, Service, refuse_without_isolation
from service.api.problems import Problem
from service.jobs.job import Job
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
from service.store.errors import NotFound
from service.store.files import READY, File
from service.submission import Wish, submit

OUTPUT = re.compile(r"\s*\{\{\s*sample\.output_text\s*\}\}\s*")
TEMPLATE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
LONGEST = 200
"""Characters of a fixed text; a pattern has at most 500, and every letter may need a backslash."""
MOST_GRADERS = 20
LONGEST_SUM = 1000
OFFERED = "string_check with a fixed reference, and multi of such"
REASONS = {
    "python": "runs Python code of yours on the server, which no recipe from the network may",
    "text_similarity": "compares an answer with a text of its row, and rewards see the prompt and the answer alone",
    "score_model": (
        "puts your own question to a model of OpenAI; a judge or a reward model stands in a recipe: submit one to "
        "/api/v1/jobs"
    ),
    "label_model": (
        "puts your own question to a model of OpenAI; a classifier stands in a recipe: submit one to /api/v1/jobs"
    ),
}


class Unoffered(ValueError):
    """A grader that is no reward here; the message is one sentence."""


def reward_of(grader: object, inside: bool = False) -> dict[str, Any]:
    """The recipe's `reward` for a grader. Raises Unoffered."""
    if not isinstance(grader, Mapping):
        raise Unoffered(f"the grader is {type(grader).__name__}, must be an object with 'type'; offered: {OFFERED}")
    kind = grader.get("type")
    if kind == "string_check":
        return _string_check(grader)
    if kind == "multi" and not inside:
        return _multi(grader)
    if kind == "multi":
        raise Unoffered("a grader 'multi' stands inside another, must hold plain graders")
    if kind in REASONS:
        raise Unoffered(f"the grader '{kind}' {REASONS[kind]}; offered: {OFFERED}")
    raise Unoffered(f"there is no grader '{str(kind)[:40]}'; offered: {OFFERED}")


def _string_check(grader: Mapping[str, object]) -> dict[str, Any]:
    named = f"the grader '{str(grader.get('name', 'string_check'))[:40]}'"
    checked, reference, operation = grader.get("input"), grader.get("reference"), grader.get("operation")
    if not isinstance(checked, str) or not OUTPUT.fullmatch(checked):
        raise Unoffered(f"{named} checks {str(checked)[:60]!r}, must be '{{{{sample.output_text}}}}', the answer")
    if not isinstance(reference, str) or not reference.strip() or len(reference) > LONGEST:
        raise Unoffered(f"{named} needs a 'reference' of 1 to {LONGEST} characters")
    if TEMPLATE.search(reference):
        raise Unoffered(
            f"{named} has a reference that reads the row ({reference[:60]}); rewards see the prompt and the answer "
            "alone, so give a fixed text"
        )
    text = re.escape(reference.strip())
    patterns = {"eq": rf"\A\s*{text}\s*\Z", "ne": rf"\A(?!\s*{text}\s*\Z)", "like": text, "ilike": text}
    if operation not in patterns:
        raise Unoffered(f"{named} has the operation {str(operation)[:40]!r}, must be one of {', '.join(patterns)}")
    return {
        "name": "pattern",
        "pattern": patterns[operation],
        **({"ignore_case": True} if operation == "ilike" else {}),
    }


def _multi(grader: Mapping[str, object]) -> dict[str, Any]:
    graders, formula = grader.get("graders"), grader.get("calculate_output")
    if not isinstance(graders, Mapping) or not 1 <= len(graders) <= MOST_GRADERS:
        raise Unoffered(f"the grader 'multi' needs 'graders', an object of 1 to {MOST_GRADERS} graders by name")
    weights = weights_of(formula, [str(name) for name in graders])
    parts = [{"reward": reward_of(graders[name], inside=True), "weight": weight} for name, weight in weights.items()]
    return {"name": "weighted", "rewards": parts}


def weights_of(formula: object, names: list[str]) -> dict[str, float]:
    """What each grader is multiplied by in a sum such as `0.5 * a + 2 * b - c`. Raises Unoffered for anything else."""
    refused = Unoffered(
        f"calculate_output is {str(formula)[:60]!r}, must add graders up, each times a number: 0.5 * {names[0]} + …"
    )
    if not isinstance(formula, str) or len(formula) > LONGEST_SUM:
        raise refused
    weights: dict[str, float] = {}
    try:
        for name, weight in _terms(ast.parse(formula.strip(), mode="eval").body, 1.0, 0):
            if name not in names:
                raise Unoffered(
                    f"calculate_output names '{name[:40]}', which is none of the graders: {', '.join(names)}"
                )
            weights[name] = weights.get(name, 0.0) + weight
    except Unoffered:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError, ArithmeticError):
        raise refused from None
    if not weights:
        raise refused
    return weights


def _terms(node: ast.expr, factor: float, depth: int) -> Iterator[tuple[str, float]]:
    """(grader, what it is multiplied by) of a sum. Raises ValueError for what is none."""
    if depth > 100 or not abs(factor) <= 1e6:
        raise ValueError
    match node:
        case ast.Name(id=name):
            yield name, factor
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            yield from _terms(left, factor, depth + 1)
            yield from _terms(right, factor if isinstance(sign, ast.Add) else -factor, depth + 1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            number, other = (left, right) if _number(left) is not None else (right, left)
            yield from _terms(other, factor * _needed(number), depth + 1)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            yield from _terms(left, factor / _needed(right), depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -factor, depth + 1)
        case _:
            raise ValueError


def _number(node: ast.expr) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _needed(node: ast.expr) -> float:
    number = _number(node)
    if number is None:
        raise ValueError
    return number


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
    reward = _reward(request) if method == "reinforcement" else None
    training = _file(service, caller, request.training_file, "training_file", shape)
    validation = (
        _file(service, caller, request.validation_file, "validation_file", shape) if request.validation_file else None
    )
    base = _base(service, caller, request.model)
    if base.from_scratch and not how.from_scratch:
        raise Problem(
            400,
            f"'{request.model}' has learnt nothing yet, and {method} improves a model that answers: fine-tune it by "
            "supervised first, then name what that made.",
            "unsupported_model",
            param="model",
        )
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


def _reward(request: NewJob) -> dict[str, Any]:
    """The reward behind the grader. Raises Problem where there is none."""
    settings = request.method.reinforcement if request.method else None
    if settings is None:
        raise Problem(
            400,
            "The method 'reinforcement' needs a grader: method.reinforcement.grader.",
            "missing_grader",
            param="method.reinforcement.grader",
        )
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
    try:
        return reward_of(settings.grader)
    except Unoffered as error:
        raise Problem(
            400, f"{str(error)[:1].upper()}{str(error)[1:]}.", "unsupported_grader", param="method.reinforcement.grader"
        ) from None


def _suffix(given: str | None) -> str:
    """The suffix in letters that a model's name may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", given or "").strip("-.")[:40].lower()


def _base(service: Service, caller: Caller, model: str) -> Base:
    try:
        service.store.model(caller.project, model)
        published: str | None = model  # an alias of it is resolved, and written down, when the job is submitted
    except NotFound:
        published = None
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


__all__ = ["Unoffered", "reward_of", "weights_of"]
