"""Graders in OpenAI's words: what an answer is worth, from the row that asked for it and the answer itself.

string_check      eq, ne, like, ilike: 1 or 0; white space around both texts is left aside
text_similarity   how alike two texts are, by `core.text_similarity`, or the cosine of their vectors
score_model       a model that reads the messages and answers with a number of `range`
label_model       a model that answers with one of `labels`; 1 where it is among `passing_labels`
multi             graders joined by the formula `calculate_output`

`python` is refused: it would run code of whoever writes the grader (docs/decisions/0035).

A grader does not ask models itself. `grading` is a generator that yields a GraderQuestion, is sent the GraderAnswer,
and returns the Grade: the service asks its processes one row at a time, a training job asks an opened model for many
rows at once, and what is asked and how an answer is read stands here, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipelines.core.config import Block, ConfigIssues, flatten, show
from pipelines.core.grader_formula import Formula, read_formula
from pipelines.core.grader_templates import GraderTemplate, Path, Unfilled, quoted, read_template
from pipelines.core.registry import nearest
from pipelines.core.text_similarity import NotInstalled, Similarity, similarity

MOST_GRADERS = 20
"""In one `multi`."""
DEEPEST = 3
"""Graders inside each other."""
MOST_MESSAGES = 64
MOST_LABELS = 50
NAME = re.compile(r"[^\W\d]\w*")
NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
TOKENS = 64
"""What a model that grades may write where the grader does not say."""
REFUSED = {
    "python": "runs code of its author's on the server, which nothing here does; say the same with string_check, "
    "text_similarity, score_model and multi",
    "endpoint": "asks an address of its author's; a judge at an endpoint stands in a recipe, sent to /api/v1/jobs",
}


# ---- questions to models, and what comes of them ---------------------------------------------------------------------


@dataclass(frozen=True)
class GraderQuestion:
    """What a grader asks of a model: an answer to messages, or how alike the vectors of two texts are."""

    model: str | None
    """None: the model that the one who asks takes for vectors."""
    messages: tuple[Mapping[str, str], ...] = ()
    texts: tuple[str, str] | None = None
    """The two texts whose cosine is asked for."""
    max_tokens: int = TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    json_schema: str | None = None
    """The answer is JSON that this schema, as JSON, allows."""


@dataclass(frozen=True)
class GraderAnswer:
    """What the model said."""

    text: str = ""
    cosine: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str = ""
    """Why there is no answer; empty where there is one."""


@dataclass
class Usage:
    """What was asked of one model."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: Usage) -> None:
        """Count that too."""
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens


Fault = Literal[
    "sample_parse_error",
    "invalid_variable_error",
    "model_grader_parse_error",
    "model_grader_server_error",
    "formula_parse_error",
    "other_error",
]


@dataclass
class Grade:
    """What a grader gave."""

    name: str
    type: str
    score: float
    faults: dict[Fault, str] = field(default_factory=dict)
    """What went wrong, each with a sentence; the score is then the lowest that the grader gives."""
    parts: dict[str, Grade] = field(default_factory=dict)
    """Of a `multi`."""
    usage: dict[str, Usage] = field(default_factory=dict)
    """By model."""
    said: str = ""
    """What a model answered."""


Steps = Generator[GraderQuestion, GraderAnswer, Grade]


# ---- what is graded --------------------------------------------------------------------------------------------------


def sample_of(text: str, **more: object) -> dict[str, Any]:
    """The namespace `sample` for an answer: `output_text`, `choices`, and `output_json` where it is JSON."""
    message = {"role": "assistant", "content": text}
    sample: dict[str, Any] = {"output_text": text, "choices": [{"index": 0, "message": message}], **more}
    try:
        sample["output_json"] = json.loads(text)
    except (ValueError, RecursionError):
        sample["output_json"] = None
    return sample


# ---- graders ---------------------------------------------------------------------------------------------------------


def _templated(value: object) -> object:
    if isinstance(value, str):
        read_template(value)
    return value


TemplateText = Annotated[str, BeforeValidator(_templated)]
"""A text with paths in it."""


def _content(value: object) -> object:
    """The text of a message's content, whatever form it was given in."""
    if isinstance(value, Mapping):
        value = (value,)
    if not isinstance(value, list | tuple):
        return _templated(value)
    texts = []
    for part in value:
        given = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif given in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ValueError(f"has a part {show(given or part)}, must be text: models here read text alone")
    return _templated("".join(texts))


class GraderMessage(Block):
    """One message to a model that grades."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks."""
    content: Annotated[str, BeforeValidator(_content)]
    """What is said, with `{{item.…}}` and `{{sample.…}}` in it."""
    type: Literal["message"] | None = None
    """Always `message`."""


class GraderSampling(Block):
    """How a model that grades chooses its words."""

    temperature: float | None = Field(None, ge=0, le=2)
    """Default: 0, so that the same answer gets the same grade."""
    top_p: float | None = Field(None, gt=0, le=1)
    """The share of the likeliest tokens that are drawn from."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Of what is drawn."""
    max_completions_tokens: int | None = Field(None, ge=1, le=4096)
    """Tokens of its answer; default 64."""
    reasoning_effort: str | None = None
    """Taken and not used."""


class Grader(Block):
    """Base of every grader."""

    name: str = Field("grader", min_length=1, max_length=200)
    """What it is called in results."""
    type: str
    """A word of GRADERS."""
    threshold: ClassVar[float] = 1.0
    """The least score that passes where nothing says otherwise."""

    @property
    def templates(self) -> tuple[GraderTemplate, ...]:
        """Everything that is filled in."""
        return ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """What it reads of the row and of the answer, the graders inside it included."""
        return tuple(path for template in self.templates for path in template.paths)

    def models(self) -> Iterator[tuple[str | None, Literal["chat", "embed"]]]:
        """The models that it asks, and what for."""
        yield from ()

    @property
    def lowest(self) -> float:
        """The score of an answer that cannot be graded."""
        return 0.0

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        """Grade one answer. Raises Unfilled."""
        raise NotImplementedError


class StringCheck(Grader):
    """Compares two texts: `{type: string_check, input: '{{sample.output_text}}', reference: '{{item.answer}}',
    operation: eq}`."""

    type: Literal["string_check"] = "string_check"
    input: TemplateText
    """The text that is checked."""
    reference: TemplateText
    """What it is compared with."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """`eq`: the same; `ne`: not the same; `like`: the reference occurs in it; `ilike`: whatever the capitals."""

    @property
    def templates(self) -> tuple[GraderTemplate, ...]:
        return read_template(self.input), read_template(self.reference)

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        yield from ()
        text, reference = (template.filled(namespaces).strip() for template in self.templates)
        checks = {
            "eq": text == reference,
            "ne": text != reference,
            "like": reference in text,
            "ilike": reference.casefold() in text.casefold(),
        }
        return Grade(self.name, self.type, float(checks[self.operation]))


class TextSimilarity(Grader):
    """How alike two texts are, from 0 to 1: `{type: text_similarity, evaluation_metric: rouge_l, …}`."""

    type: Literal["text_similarity"] = "text_similarity"
    input: TemplateText
    """The text that is graded."""
    reference: TemplateText
    """What it is compared with."""
    evaluation_metric: Literal[Similarity, "cosine"]
    """`fuzzy_match`, `bleu`, `gleu`, `meteor`, `rouge_1` to `rouge_5`, `rouge_l`, or `cosine` of the texts' vectors."""
    model: str | None = Field(None, min_length=1, max_length=250)
    """Of `cosine`: whose vectors. Default: the newest model that gives some."""
    threshold: ClassVar[float] = 0.5

    @property
    def templates(self) -> tuple[GraderTemplate, ...]:
        return read_template(self.input), read_template(self.reference)

    def models(self) -> Iterator[tuple[str | None, Literal["chat", "embed"]]]:
        if self.evaluation_metric == "cosine":
            yield self.model, "embed"

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        text, reference = (template.filled(namespaces) for template in self.templates)
        grade = Grade(self.name, self.type, 0.0)
        if self.evaluation_metric != "cosine":
            metric: Similarity = self.evaluation_metric
            try:
                grade.score = similarity(metric, text, reference)
            except NotInstalled as missing:
                grade.faults["other_error"] = str(missing)
        elif text.strip() and reference.strip():
            answer = yield GraderQuestion(self.model, texts=(text, reference))
            grade.score = max(0.0, min(1.0, answer.cosine))
            _noted(grade, answer, self.model)
        return grade


class ModelGrader(Grader):
    """Base of the graders that ask a model."""

    input: tuple[GraderMessage, ...] = Field(min_length=1, max_length=MOST_MESSAGES)
    """The messages that it reads."""
    model: str = Field(min_length=1, max_length=250)
    """A model that chats."""

    @property
    def templates(self) -> tuple[GraderTemplate, ...]:
        return tuple(read_template(each.content) for each in self.input)

    def models(self) -> Iterator[tuple[str | None, Literal["chat", "embed"]]]:
        yield self.model, "chat"

    def asked(self, namespaces: Mapping[str, Any], instruction: str, sampling: GraderSampling) -> GraderQuestion:
        """The question, with what must be answered behind the last words of the user. Markup of chat templates in what
        is put in is broken, so that an answer cannot speak for somebody else. Raises Unfilled."""
        filled = [
            {
                "role": "system" if each.role == "developer" else each.role,
                "content": template.filled(namespaces, quoted),
            }
            for each, template in zip(self.input, self.templates, strict=True)
        ]
        if filled[-1]["role"] == "user":
            filled[-1]["content"] += f"\n\n{instruction}"
        else:
            filled.append({"role": "user", "content": instruction})
        return GraderQuestion(
            self.model,
            messages=tuple(filled),
            max_tokens=sampling.max_completions_tokens or TOKENS,
            temperature=sampling.temperature or 0.0,
            top_p=sampling.top_p or 1.0,
            seed=sampling.seed,
        )


class ScoreModel(ModelGrader):
    """A model's number: `{type: score_model, model: my-judge, input: [{role: user, content: …}], range: [0, 10]}`."""

    type: Literal["score_model"] = "score_model"
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest number; what the model writes beyond them counts as they do."""
    sampling_params: GraderSampling | None = None
    """How it chooses its words."""

    @model_validator(mode="after")
    def _ordered(self) -> ScoreModel:
        if self.range[0] >= self.range[1]:
            raise ConfigIssues([(("range",), f"is {show(list(self.range))}, must go from a number to a larger one")])
        return self

    @property
    def lowest(self) -> float:
        return self.range[0]

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        low, high = self.range
        instruction = f"Answer with one number from {low:g} to {high:g} and nothing else."
        answer = yield self.asked(namespaces, instruction, self.sampling_params or GraderSampling())
        grade = Grade(self.name, self.type, low, said=answer.text)
        _noted(grade, answer, self.model)
        number = number_in(answer.text)
        if number is not None and not answer.failure:
            grade.score = min(high, max(low, number))
        elif not answer.failure:
            grade.faults["model_grader_parse_error"] = f"the model '{self.model}' answered without a number"
        return grade


class LabelModel(ModelGrader):
    """A model's label: 1 where it is one that passes, else 0."""

    type: Literal["label_model"] = "label_model"
    labels: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        min_length=1, max_length=MOST_LABELS
    )
    """What the model chooses from."""
    passing_labels: tuple[str, ...] = Field(min_length=1)
    """Those that pass."""

    @model_validator(mode="after")
    def _among(self) -> LabelModel:
        for label in self.passing_labels:
            if label not in self.labels:
                sentence = f"holds {show(label)}, which is none of the labels.{nearest(label, self.labels)}"
                raise ConfigIssues([(("passing_labels",), sentence)])
        return self

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        instruction = f"Answer with one of these labels and nothing else: {', '.join(self.labels)}"
        answer = yield self.asked(namespaces, instruction, GraderSampling())
        grade = Grade(self.name, self.type, 0.0, said=answer.text)
        _noted(grade, answer, self.model)
        label = label_in(answer.text, self.labels)
        if label is not None and not answer.failure:
            grade.score = float(label in self.passing_labels)
        elif not answer.failure:
            grade.faults["model_grader_parse_error"] = f"the model '{self.model}' answered with none of the labels"
        return grade


class GraderField:
    """The type of a key that holds a grader; `type` picks the class."""

    described: ClassVar[bool] = False
    """Whether the schema of a grader is being written: one inside another is described by its type alone."""

    def __call__(self, value: object) -> Any:
        if isinstance(value, Grader):
            return value
        kind = value.get("type") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(kind, str):
            raise ConfigIssues([((), f"is {show(value)}, must be an object with 'type': {', '.join(GRADERS)}")])
        if kind in REFUSED:
            raise ConfigIssues([(("type",), f"is '{kind}', which {REFUSED[kind]}")])
        if kind not in GRADERS:
            raise ConfigIssues(
                [(("type",), f"is '{kind[:40]}', must be one of {', '.join(GRADERS)}.{nearest(kind, GRADERS)}")]
            )
        try:
            return GRADERS[kind].model_validate(as_tuples(value))
        except ValidationError as error:
            raise ConfigIssues(flatten(error)) from None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda grader: {"type": grader.type, **grader.plain()} if isinstance(grader, Grader) else grader
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        if GraderField.described:
            return {"type": "object", "properties": {"type": {"enum": list(GRADERS)}}, "required": ["type"]}
        GraderField.described = True
        try:
            choices = []
            for name, grader in GRADERS.items():
                made = grader.__get_pydantic_json_schema__(grader.__pydantic_core_schema__, handler)
                choice = dict(handler.resolve_ref_schema(made))
                choice["properties"] = {**choice["properties"], "type": {"const": name}}
                choice["required"] = ["type", *choice.get("required", [])]
                choices.append(choice)
        finally:
            GraderField.described = False
        return {"anyOf": choices}


AnyGrader = Annotated[Any, GraderField()]
"""The type of a field that holds a grader."""


def _by_name(value: object) -> object:
    """Graders by name. The client's own type has one grader there, which is taken under its name."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return {str(value.get("name", "grader")): value}
    return value


class Multi(Grader):
    """Graders joined into one number: `{type: multi, graders: {exact: {…}, style: {…}}, calculate_output: '0.8 *
    exact + 0.2 * style'}`."""

    type: Literal["multi"] = "multi"
    graders: Annotated[dict[str, AnyGrader], BeforeValidator(_by_name)] = Field(min_length=1, max_length=MOST_GRADERS)
    """The graders, by the names that the formula calls them by."""
    calculate_output: str
    """The formula: numbers, names, `+ - * / ^`, brackets, `min max abs floor ceil exp sqrt log`."""
    threshold: ClassVar[float] = 0.5

    @model_validator(mode="after")
    def _whole(self) -> Multi:
        for name in self.graders:
            if NAME.fullmatch(name) is None:
                raise ConfigIssues(
                    [(("graders", name), "is no name for a formula: write letters, digits and '_', a letter first")]
                )
        try:
            formula = self.formula
        except ValueError as error:
            raise ConfigIssues([(("calculate_output",), str(error))]) from None
        unknown = sorted(formula.names - set(self.graders))
        if unknown:
            raise ConfigIssues(
                [
                    (
                        ("calculate_output",),
                        f"reads '{unknown[0]}', which is none of the graders: {', '.join(self.graders)}",
                    )
                ]
            )
        if not formula.names:
            raise ConfigIssues([(("calculate_output",), f"reads none of the graders: {', '.join(self.graders)}")])
        if _depth(self) > DEEPEST:
            raise ConfigIssues([(("graders",), f"stand more than {DEEPEST} deep inside each other")])
        return self

    @property
    def formula(self) -> Formula:
        """The formula, read."""
        return read_formula(self.calculate_output)

    @property
    def templates(self) -> tuple[GraderTemplate, ...]:
        return tuple(template for each in self.graders.values() for template in each.templates)

    def models(self) -> Iterator[tuple[str | None, Literal["chat", "embed"]]]:
        for each in self.graders.values():
            yield from each.models()

    def steps(self, namespaces: Mapping[str, Any]) -> Steps:
        grade = Grade(self.name, self.type, 0.0)
        for name, each in self.graders.items():
            part = yield from grading(each, namespaces["item"], namespaces["sample"])
            grade.parts[name] = part
            grade.faults = {**part.faults, **grade.faults}
            for model, usage in part.usage.items():
                grade.usage.setdefault(model, Usage()).add(usage)
        try:
            grade.score = self.formula.value({name: part.score for name, part in grade.parts.items()})
        except ArithmeticError as error:
            grade.faults["formula_parse_error"] = str(error)
        return grade


GRADERS: dict[str, type[Grader]] = {
    "string_check": StringCheck,
    "text_similarity": TextSimilarity,
    "score_model": ScoreModel,
    "label_model": LabelModel,
    "multi": Multi,
}
"""`type` -> the class."""


def read_grader(data: object) -> Grader:
    """The grader behind plain data. Raises ConfigIssues with every mistake."""
    grader: Grader = GraderField()(data)
    return grader


def grading(grader: Grader, item: Mapping[str, Any], sample: Mapping[str, Any]) -> Steps:
    """Grade one answer: yields questions, is sent answers, returns the grade. What cannot be filled in is a fault of
    the grade."""
    try:
        return (yield from grader.steps({"item": item, "sample": sample}))
    except Unfilled as error:
        fault: Fault = "sample_parse_error" if error.namespace == "sample" else "invalid_variable_error"
        return Grade(grader.name, grader.type, grader.lowest, {fault: str(error)})


def as_tuples(value: object) -> Any:
    """JSON as recipes have it: lists as tuples."""
    if isinstance(value, Mapping):
        return {key: as_tuples(each) for key, each in value.items()}
    return tuple(as_tuples(each) for each in value) if isinstance(value, list | tuple) else value


def number_in(text: str) -> float | None:
    """The number of an answer: `result` or `score` of a JSON object, else the first one of the last line with any."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, Mapping):
        given = next((data[key] for key in ("result", "score") if key in data), None)
        return float(given) if isinstance(given, int | float) and abs(given) < 1e300 else None
    found = [match for line in text.splitlines() if (match := NUMBER.search(line))]
    return float(found[-1].group()) if found and len(found[-1].group()) < 300 else None


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """The label that an answer is, or the only one that occurs in it."""
    plain = text.strip().strip("\"'.`*").casefold()
    same = [label for label in labels if label.casefold() == plain]
    if same:
        return same[0]
    within = [label for label in labels if re.search(rf"(?<!\w){re.escape(label.casefold())}(?!\w)", text.casefold())]
    return within[0] if len(within) == 1 else None


def _noted(grade: Grade, answer: GraderAnswer, model: str | None) -> None:
    grade.usage.setdefault(model or "", Usage()).add(Usage(1, answer.prompt_tokens, answer.completion_tokens))
    if answer.failure:
        grade.faults["model_grader_server_error"] = answer.failure


def _depth(grader: Grader) -> int:
    return 1 + max((_depth(each) for each in grader.graders.values()), default=0) if isinstance(grader, Multi) else 1
