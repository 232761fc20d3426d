"""What clients ask of models: the bodies of chat completions, completions and embeddings, in OpenAI's words.

What is not offered and changes the meaning of an answer is refused by name; what only concerns OpenAI's own house
(`user`, `store`, `service_tier`) is taken and not used.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.api.problems import Problem

UNUSED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
    "reasoning_effort", "verbosity",
)  # fmt: skip
REFUSED = {
    "tools": "no tools are called",
    "tool_choice": "no tools are called",
    "functions": "no functions are called",
    "function_call": "no functions are called",
    "modalities": "models write text alone",
    "audio": "models write text alone",
    "prediction": "nothing is predicted beforehand",
    "web_search_options": "models read nothing but the messages",
    "suffix": "models write forwards alone",
}
SEEDS = 2**31
LARGEST_SEED = 2**63 - 1
MOST_CHOICES = 8
MOST_PROMPTS = 64
MOST_INPUTS = 2048
LARGEST_SCHEMA = 1 << 16
Text = Annotated[str, Field(max_length=1 << 20)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Name = Annotated[str, Field(min_length=1, max_length=250, pattern=r"^[^\x00]*$")]


def unsupported(key: str, why: str) -> Problem:
    """The error for what is not offered."""
    return Problem(400, f"'{key}' is not offered: {why}; leave it out.", "unsupported_parameter", param=key)


class Body(BaseModel):
    """The body of a question."""

    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A published model: its name as /v1/models lists it.")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        wanted = {key: value for key, value in data.items() if value not in (None, [], {})}
        for key, why in REFUSED.items():
            if key in wanted and wanted[key] not in ("none", "auto") and key not in cls.model_fields:
                raise unsupported(key, why)
        if unknown := [str(key) for key in data if key not in (*cls.model_fields, *UNUSED, *REFUSED)]:
            known = ", ".join(cls.model_fields)
            raise Problem(
                400,
                f"Unrecognised argument '{unknown[0][:40]}'; known: {known}.",
                "unknown_parameter",
                param=unknown[0],
            )
        return {key: value for key, value in data.items() if key in cls.model_fields and value is not None}


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class GenerationBody(Body):
    """What chat completions and completions have in common."""

    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the likeliest token.")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(
        0,
        ge=-1,
        le=1 << 20,
        description="So many of the likeliest tokens are drawn from; 0 and -1 for all. Not OpenAI's.",
    )
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(None, ge=-(2**63), le=LARGEST_SEED, description="The same seed gives the same text.")
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default={}, max_length=1024
    )

    def choice(self, max_tokens: int | None, logprobs: int | None) -> dict[str, Any]:
        """How tokens are chosen, as the process takes it; a seed is drawn where none is given."""
        seed = secrets.randbelow(SEEDS) if self.seed is None else self.seed % LARGEST_SEED
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(0, self.top_k),
            "seed": seed,
            "stop": stops,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
        }


class Part(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(min_length=1, max_length=256)]

    def plain(self) -> dict[str, str]:
        """As templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class JsonSchema(BaseModel):
    """A schema that an answer follows, as OpenAI's structured outputs have it; `strict` or not, it is followed."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    name: Annotated[str, Field(min_length=1, max_length=64)] = "answer"
    schema_: dict[str, Any] = Field({"type": "object"}, alias="schema")


class ResponseFormat(BaseModel):
    """The form of an answer: text, an object of JSON, or JSON by a schema."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise Problem(
                400,
                "'response_format' has 'json_schema' where its type is json_schema, and only there.",
                "invalid_request",
                param="response_format",
            )
        if len(self.schema_text or "") > LARGEST_SCHEMA:
            raise Problem(
                400,
                f"The schema of 'response_format' has more than {LARGEST_SCHEMA:,} characters.",
                "invalid_request",
                param="response_format",
            )
        return self

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON; None for text."""
        if self.type == "text":
            return None
        return json.dumps({"type": "object"} if self.json_schema is None else self.json_schema.schema_)


class ChatBody(GenerationBody):
    """A conversation that the model is to go on with."""

    messages: list[Message] = Field(min_length=1, max_length=1024)
    max_tokens: int | None = Field(None, ge=1, le=1 << 20)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 20)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise Problem(400, "'top_logprobs' needs logprobs: true.", "invalid_request", param="top_logprobs")
        return self

    def question(self) -> dict[str, Any]:
        """As the process takes it."""
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        top_logprobs = (self.top_logprobs or 0) if self.logprobs else None
        schema = None if self.response_format is None else self.response_format.schema_text
        return {
            "messages": [each.plain() for each in self.messages],
            "n": self.n,
            "choice": self.choice(most, top_logprobs) | ({} if schema is None else {"json_schema": schema}),
        }


class CompletionBody(GenerationBody):
    """Texts, or tokens, that the model is to go on with."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[list[Token]], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    max_tokens: int = Field(16, ge=0, le=1 << 20, description="0 with echo: the prompt alone.")
    logprobs: int | None = Field(None, ge=0, le=5)
    best_of: int | None = Field(None, ge=1, le=MOST_CHOICES)
    echo: bool = Field(False, description="The prompt is the beginning of the text.")

    @model_validator(mode="after")
    def _offered(self) -> CompletionBody:
        if self.best_of is not None and self.best_of != self.n:
            raise unsupported("best_of", "every text that is written is told")
        if self.max_tokens == 0 and not self.echo:
            raise Problem(
                400, "'max_tokens': 0 writes nothing; give echo: true too.", "invalid_request", param="max_tokens"
            )
        return self

    def prompts(self) -> list[str | list[int]]:
        """The prompts, whatever the form that they were given in."""
        return several(self.prompt)

    def question(self) -> dict[str, Any]:
        """As the process takes it."""
        choice = self.choice(self.max_tokens, self.logprobs)
        return {"prompts": self.prompts(), "n": self.n, "echo": self.echo, "choice": choice}


class EmbeddingBody(Body):
    """Texts, or tokens, whose vectors are asked for."""

    input: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[list[Token]], Field(min_length=1, max_length=MOST_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=1 << 20)

    def question(self) -> dict[str, Any]:
        """As the process takes it."""
        return {"inputs": several(self.input)}


def several(given: Any) -> list[Any]:
    """A list of texts or of lists of tokens."""
    return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
