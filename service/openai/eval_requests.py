"""What clients ask of evals: the bodies of their routes, testing criteria, and the rows that a run measures.

A criterion is a grader with the score from which on it passes. The rows are those of a file of the purpose `evals`, or
stand in the request; each is `{"item": {…}}`, with `"sample"` where the answer is there already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.core.config import ConfigIssues, flatten, key_path
from pipelines.core.grader_templates import read_path, read_template
from pipelines.core.graders import Grade, Grader, GraderMessage, ScoreModel, as_tuples, sample_of
from service.api.context import Caller, Service
from service.api.problems import Problem
from service.openai.grading import grader_of, plain, with_models
from service.openai.questions import ResponseFormat
from service.openai.training_files import lines
from service.store.errors import NotFound
from service.store.files import READY
from service.uploads import file_path

PURPOSE = "evals"
MOST_CRITERIA = 20
MOST_ROWS = 5000
LARGEST_ROW = 256 << 10
LARGEST_RUN = 64 << 20
"""Bytes of all rows of a run."""
TOKENS = 256
"""What a model may write of an answer where the run does not say."""
SEED = 42
LARGEST_THRESHOLD = 1e300
"""Far beyond every score; numbers of JSON may be larger than floats."""
PASSES_AT = ("text_similarity", "score_model", "multi")
"""Graders whose scores pass from a threshold on; the others give 1 or 0."""
Name = Annotated[str, Field(max_length=200)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewEval(_Given):
    """An eval to make."""

    name: Name | None = None
    data_source_config: dict[str, Any]
    testing_criteria: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_CRITERIA)
    metadata: Metadata | None = None


class ChangedEval(_Given):
    """What is to be changed of an eval."""

    name: Name | None = None
    metadata: Metadata | None = None


class NewRun(_Given):
    """A run to make."""

    name: Name | None = None
    data_source: dict[str, Any]
    metadata: Metadata | None = None


class Content(_Given):
    """Rows that stand in the request."""

    type: Literal["file_content"]
    content: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_ROWS)


class FileId(_Given):
    """Rows of a file."""

    type: Literal["file_id"]
    id: str = Field(max_length=64)


class Template(_Given):
    """Messages with `{{item.…}}` in them."""

    type: Literal["template"]
    template: list[dict[str, Any]] = Field(min_length=1, max_length=64)


class ItemReference(_Given):
    """Messages that stand in the row."""

    type: Literal["item_reference"]
    item_reference: str = Field(max_length=200)


class Sampling(BaseModel):
    """How the model chooses its words."""

    model_config = ConfigDict(extra="forbid")

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(SEED, ge=0, lt=2**63)
    max_completion_tokens: int = Field(TOKENS, ge=1, le=1 << 20)
    max_completions_tokens: int | None = Field(None, ge=1, le=1 << 20)
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None


class Source(_Given):
    """What a run measures."""

    type: Literal["jsonl", "completions", "responses"]
    source: Annotated[Content | FileId, Field(discriminator="type")]
    input_messages: Annotated[Template | ItemReference, Field(discriminator="type")] | None = None
    model: str | None = Field(None, min_length=1, max_length=250)
    sampling_params: Sampling | None = None


# ---- criteria --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Criterion:
    """A grader, and from which score on it passes."""

    grader: Grader
    threshold: float

    def passed(self, grade: Grade) -> bool:
        """Whether an answer with this grade passes."""
        return not grade.faults and grade.score >= self.threshold

    def document(self) -> dict[str, Any]:
        """As an eval shows it."""
        own = {"pass_threshold": self.threshold} if self.grader.type in PASSES_AT else {}
        return {**plain(self.grader), "name": self.grader.name, **own}


def criterion_of(data: Mapping[str, Any], param: str) -> Criterion:
    """The criterion behind plain data. Raises Problem."""
    takes = data.get("type") in PASSES_AT or data.get("pass_threshold") is None
    threshold = data.get("pass_threshold") if takes else None
    grader = grader_of({key: value for key, value in data.items() if not takes or key != "pass_threshold"}, param)
    middle = sum(grader.range) / 2 if isinstance(grader, ScoreModel) else grader.threshold
    if threshold is not None and not _is_number(threshold):
        raise Problem(
            400, f"{param}.pass_threshold must be a number.", "invalid_grader", param=f"{param}.pass_threshold"
        )
    return Criterion(grader, float(middle if threshold is None else threshold))


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < LARGEST_THRESHOLD


def criteria_of(service: Service, caller: Caller, data: Sequence[Mapping[str, Any]]) -> list[Criterion]:
    """The criteria in a request, with a model wherever one is asked. Raises Problem."""
    criteria = []
    for at, each in enumerate(data):
        param = f"testing_criteria[{at}]"
        criterion = criterion_of(each, param)
        criteria.append(Criterion(with_models(service, caller, criterion.grader, param), criterion.threshold))
    names = [each.grader.name for each in criteria]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Problem(
            400,
            f"Two testing criteria are called '{twice}'; give each a name of its own, because results are told by it.",
            "invalid_grader",
            param="testing_criteria",
        )
    return criteria


# ---- schemas of rows -------------------------------------------------------------------------------------------------

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
DEEPEST = 20


def config_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The data source configuration of an eval, as it is kept. Raises Problem."""
    kind = given.get("type")
    if kind in ("stored_completions", "logs"):
        raise Problem(
            400,
            f"The data source '{kind}' is not offered: this server keeps no completions; take 'custom' and give the "
            "rows to each run.",
            "unsupported_data_source",
            param="data_source_config.type",
        )
    if kind != "custom" or set(given) - {"type", "item_schema", "include_sample_schema"}:
        raise Problem(
            400,
            "data_source_config must be {'type': 'custom', 'item_schema': {…}, 'include_sample_schema': …}.",
            "invalid_request",
            param="data_source_config",
        )
    schema = given.get("item_schema")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise Problem(
            400,
            "item_schema must be the JSON schema of an object.",
            "invalid_request",
            param="data_source_config.item_schema",
        )
    if (fault := schema_fault(schema)) is not None:
        raise Problem(400, f"{fault}.", "invalid_request", param="data_source_config.item_schema")
    return {
        "type": "custom",
        "item_schema": dict(schema),
        "include_sample_schema": given.get("include_sample_schema") is True,
    }


def schema_fault(schema: object, place: str = "item_schema") -> str | None:
    """What is wrong with a JSON schema, of the keywords that `misfit` looks at."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"{place} must be a JSON schema: an object, true or false"
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not _texts(kinds) or set(kinds) - set(TYPES):
        return f"{place}.type must be one of {', '.join(TYPES)}, or a list of them"
    if not _texts(schema.get("required", [])):
        return f"{place}.required must be a list of names"
    if not isinstance(schema.get("enum", []), list):
        return f"{place}.enum must be a list"
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return f"{place}.properties must be an object of JSON schemas"
    inner = {f"properties.{name}": each for name, each in properties.items()}
    inner |= {name: schema[name] for name in ("items", "additionalProperties") if name in schema}
    return next((fault for name, each in inner.items() if (fault := schema_fault(each, f"{place}.{name}"))), None)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def misfit(value: object, schema: object, place: str = "item", depth: int = 0) -> str | None:
    """Why a value does not have the form that a JSON schema asks for: `type`, `properties`, `required`, `items`,
    `enum` and `additionalProperties: false` are looked at, other keywords are not."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    kinds = schema.get("type")
    named = [kinds] if isinstance(kinds, str) else [each for each in kinds or () if isinstance(each, str)]
    if named and not any(_is(value, each) for each in named):
        return f"{place} must be of the type {' or '.join(named)}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{place} must be one of {json.dumps(schema['enum'], ensure_ascii=False)[:200]}"
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name in schema.get("required") or ():
            if name not in value:
                return f"{place}.{name} is missing"
        if schema.get("additionalProperties") is False and (more := sorted(set(value) - set(properties))):
            return f"{place}.{more[0]} is not in the schema"
        wrong = (
            misfit(value[name], each, f"{place}.{name}", depth + 1)
            for name, each in properties.items()
            if name in value
        )
        return next((each for each in wrong if each), None)
    if isinstance(value, list) and "items" in schema:
        wrong = (misfit(each, schema["items"], f"{place}[{at}]", depth + 1) for at, each in enumerate(value))
        return next((each for each in wrong if each), None)
    return None


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, object))


def unknown_column(criterion: Criterion, schema: Mapping[str, Any]) -> str | None:
    """What a criterion reads of the row that the schema does not have."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    for path in criterion.grader.paths:
        if path.namespace == "item" and path.steps and path.steps[0] not in properties:
            return path.written
    return None


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row that is measured."""

    item: Mapping[str, Any]
    given: Mapping[str, Any]
    """The answer that it brings; empty where there is none."""


def source_of(given: Mapping[str, Any]) -> Source:
    """The data source of a run. Raises Problem."""
    kind = given.get("source", {}).get("type") if isinstance(given.get("source"), Mapping) else None
    if kind in ("stored_completions", "responses", "logs"):
        raise Problem(
            400,
            f"The source '{kind}' is not offered: this server keeps no completions; give 'file_id' or 'file_content'.",
            "unsupported_data_source",
            param="data_source.source",
        )
    try:
        source = Source.model_validate(given)
    except ValueError as error:
        raise Problem(400, _first(error), "invalid_request", param="data_source") from None
    if source.type == "jsonl":
        if source.model or source.input_messages or source.sampling_params:
            raise Problem(
                400,
                "A data source of the type 'jsonl' brings its answers; to ask a model take the type 'completions'.",
                "invalid_request",
                param="data_source",
            )
        return source
    for key in ("model", "input_messages"):
        if getattr(source, key) is None:
            raise Problem(400, f"data_source.{key} is missing.", "invalid_request", param=f"data_source.{key}")
    _messages(source)
    _refuse_forms(source.sampling_params)
    return source


def _first(error: ValueError) -> str:
    found: list[Any] = error.errors() if isinstance(error, ValidationError) else []
    if not found:
        return "data_source cannot be read."
    place = ".".join(str(part) for part in ("data_source", *found[0]["loc"]) if part not in ("file_content", "file_id"))
    return f"{place}: {found[0]['msg'][:300]}."


def _messages(source: Source) -> None:
    """Raise Problem for messages that cannot be filled in."""
    wanted = source.input_messages
    param = "data_source.input_messages"
    try:
        if isinstance(wanted, Template):
            for at, message in enumerate(wanted.template):
                param = f"data_source.input_messages.template[{at}]"
                for path in read_template(template_message(message).content).paths:
                    if path.namespace != "item":
                        raise ValueError(f"reads {path.written}, but there is no answer yet: only item can be read")
        elif isinstance(wanted, ItemReference) and read_path(wanted.item_reference).namespace != "item":
            raise ValueError("must be a path such as item.messages")
    except ConfigIssues as issues:
        place, sentence = issues.found[0]
        raise Problem(400, f"{key_path((param, *place))} {sentence}.", "invalid_request", param=param) from None
    except ValueError as error:
        raise Problem(400, f"{param} {error}.", "invalid_request", param=param) from None


def template_message(message: Mapping[str, Any]) -> GraderMessage:
    """A message of a template. Raises ConfigIssues."""
    try:
        return GraderMessage.model_validate(as_tuples(message))
    except ValidationError as error:
        raise ConfigIssues(flatten(error)) from None


def _refuse_forms(sampling: Sampling | None) -> None:
    if sampling is None:
        return
    if sampling.tools:
        raise Problem(
            400,
            "No tools are called here: leave tools out.",
            "unsupported_parameter",
            param="data_source.sampling_params",
        )
    schema_of(sampling.model_dump(exclude_none=True))


def schema_of(sampling: Mapping[str, Any]) -> str | None:
    """The schema that sampled answers follow, as JSON; None for plain text. `response_format` has the form of chats,
    `text.format` that of responses. Raises Problem."""
    form = sampling.get("response_format") or (sampling.get("text") or {}).get("format") or {"type": "text"}
    if not isinstance(form, Mapping):
        raise Problem(
            400, "text.format must be an object with a type.", "invalid_request", param="data_source.sampling_params"
        )
    if form.get("type") == "json_schema" and "schema" in form:
        form = {"type": "json_schema", "json_schema": {key: form[key] for key in ("name", "schema") if key in form}}
    try:
        return ResponseFormat.model_validate(form).schema_text
    except ValidationError as error:
        raise Problem(400, _first(error), "invalid_request", param="data_source.sampling_params") from None


def asked_messages(source: Mapping[str, Any], item: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the model is asked about a row. Raises LookupError or ValueError with one sentence."""
    wanted = source["input_messages"]
    namespaces = {"item": item, "sample": {}}
    if wanted["type"] == "template":
        messages = [template_message(each) for each in wanted["template"]]
        return [
            {"role": _role(each.role), "content": read_template(each.content).filled(namespaces)} for each in messages
        ]
    value = read_path(wanted["item_reference"]).value(namespaces)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{wanted['item_reference']} must be a list of messages")
    found = []
    for each in value:
        if not isinstance(each, Mapping) or not isinstance(each.get("content"), str):
            raise ValueError(f"{wanted['item_reference']} must hold messages with role and content, both texts")
        found.append({"role": _role(str(each.get("role"))), "content": each["content"]})
    return found


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def rows_of(
    service: Service, caller: Caller, source: Source, schema: Mapping[str, Any], criteria: Sequence[Criterion]
) -> list[Row]:
    """The rows of a run, each held against the schema. Raises Problem with the number of the first that is wrong."""
    rows: list[Row] = []
    size = 0
    reads_sample = source.type == "jsonl" and any(
        path.namespace == "sample" for each in criteria for path in each.grader.paths
    )
    for number, data in _raw(service, caller, source):
        row = row_of(data)
        problem = row if isinstance(row, str) else misfit(row.item, schema)
        if problem is None and isinstance(row, Row):
            if reads_sample and not row.given:
                problem = "has no 'sample', and a criterion reads the answer; give it, or ask a model by 'completions'"
            length = len(json.dumps(data, ensure_ascii=False))
            size += length
            if length > LARGEST_ROW:
                problem = f"has {length} characters, may have at most {LARGEST_ROW}"
            rows.append(row)
        if problem is not None:
            raise Problem(400, f"Row {number}: {problem}.", "invalid_data_source", param="data_source.source")
        if len(rows) > MOST_ROWS or size > LARGEST_RUN:
            raise Problem(
                400,
                f"A run may have at most {MOST_ROWS} rows, and {LARGEST_RUN >> 20} MiB of them; take a part of them.",
                "invalid_data_source",
                param="data_source.source",
            )
    if not rows:
        raise Problem(400, "The data source has no rows.", "invalid_data_source", param="data_source.source")
    return rows


def _raw(service: Service, caller: Caller, source: Source) -> Iterator[tuple[int, object]]:
    given = source.source
    if isinstance(given, Content):
        yield from enumerate(given.content, start=1)
        return
    try:
        file = service.store.file(given.id, caller.project)
    except NotFound:
        file = None
    if file is None or file.purpose != PURPOSE or file.state != READY:
        raise Problem(
            400,
            f"There is no file '{given.id}' of the purpose '{PURPOSE}'; upload one to /v1/files.",
            "invalid_file",
            param="data_source.source.id",
        )
    with open(file_path(service.settings, file), "rb") as stored:
        for number, line in lines(stored):
            yield number, json.loads(line.decode("utf-8-sig")) if isinstance(line, bytes) else None


def row_of(data: object) -> Row | str:
    """A row, or what is wrong with it."""
    if not isinstance(data, Mapping) or not isinstance(data.get("item"), Mapping):
        return "must be an object with 'item', an object"
    given = data.get("sample")
    if given is not None and not isinstance(given, Mapping):
        return "has a 'sample' that is no object"
    return Row(data["item"], given or {})


def given_sample(given: Mapping[str, Any]) -> dict[str, Any]:
    """The namespace `sample` for an answer that a row brings."""
    text = given.get("output_text")
    if not isinstance(text, str):
        try:
            text = given["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = ""
    return {**sample_of(str(text or "")), **given}
