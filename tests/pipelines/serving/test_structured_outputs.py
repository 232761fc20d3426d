"""Texts that are held to JSON, or to a schema, of a model that writes at random."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import CommandError
from pipelines.serving.sequences import SamplingSettings, WrittenSequence
from pipelines.serving.structured_outputs import MISSING, GrammarCompiler
from tests import tiny
from tests.byte_pairs import byte_pairs

pytest.importorskip("llguidance", reason="needs the extra `structured`")
SPARE = 10
"""Rows of a model beyond its tokens."""


@cache
def grammars() -> GrammarCompiler:
    tokenizer = byte_pairs()
    return GrammarCompiler(tokenizer, [tokenizer.eos_token_id], len(tokenizer) + SPARE)


def written(schema: Any, seed: int, temperature: float = 1.0, limit: int = 400) -> tuple[str, str | None]:
    """(the text, why it ended) of a model whose logits are noise."""
    tokenizer, told = byte_pairs(), []
    text = WrittenSequence(
        tokenizer, [5, 6], SamplingSettings(temperature, seed=seed), limit, [tokenizer.eos_token_id], told.append,
        grammar=grammars().compile_json_schema(json.dumps(schema)),
    )  # fmt: skip
    noise = torch.Generator().manual_seed(seed)
    while text.choose(torch.randn(len(tokenizer) + SPARE, generator=noise)) is not None:
        pass
    return "".join(each.get("text", "") for each in told), text.reason


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "ü", "c d"]}, "maxItems": 3},
        "both": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "both"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_model_would_write_the_text_is_what_the_schema_allows(seed: int, temperature: float) -> None:
    text, reason = written(PERSON, seed, temperature)
    assert reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


SCALARS = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", 1, None]},
        {"type": "string", "maxLength": 5},
        {"const": {"a": [1]}},
    ]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "é", '"']), inner, min_size=1, max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields),
                "additionalProperties": False,
            }
        ),
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda either: {"anyOf": either}),
    ),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(SCHEMAS, st.integers(0, 1000))
def test_any_schema_is_followed_to_its_end_or_to_the_limit(schema: Any, seed: int) -> None:
    text, reason = written(schema, seed)
    if reason == "stop":
        jsonschema.validate(json.loads(text), schema)
    else:
        assert reason == "length"


def test_a_text_that_is_cut_is_the_beginning_of_one() -> None:
    text, reason = written(PERSON, 1, limit=6)
    assert reason == "length"
    assert text.startswith("{")


@pytest.mark.parametrize("schema", [{"type": "object"}, PERSON], ids=["object", "schema"])
def test_there_is_no_white_space_between_the_parts(schema: Any) -> None:
    """Else a model that has learnt no JSON writes nothing but white space until its tokens end."""
    tokenizer = byte_pairs()
    text = WrittenSequence(
        tokenizer, [5, 6], SamplingSettings(0.0), 400, [tokenizer.eos_token_id], lambda told: None,
        grammar=grammars().compile_json_schema(json.dumps(schema)),
    )  # fmt: skip
    likes = torch.tensor([float(each.isspace()) for each in map(tokenizer.decode, range(len(tokenizer)))])
    noise = torch.Generator().manual_seed(1)
    while text.choose(50 * likes + torch.randn(len(likes), generator=noise)) is not None:
        pass
    outside = re.sub(r'"[^"]*("|$)', '""', tokenizer.decode(text.tokens, skip_special_tokens=True))
    assert outside.startswith("{")
    assert not re.search(r"\s", outside)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"type": "objekt"}', "Invalid type: objekt"),
        ('{"not": {"type": "string"}}', "Unimplemented keys"),
        ('{"type": "integer", "minimum": 2, "maximum": 1}', "minimum"),
        ("[", "cannot be followed"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_one_sentence(schema: str, problem: str) -> None:
    with pytest.raises(CommandError, match=r"the schema of 'response_format' cannot be followed: ") as caught:
        grammars().compile_json_schema(schema)
    assert problem in str(caught.value)


def test_tokens_that_are_no_pieces_of_text_are_refused() -> None:
    with pytest.raises(CommandError, match="cannot be held to a schema, since its tokens are no pieces of text"):
        GrammarCompiler(tiny.tokenizer(), [3], 96).compile_json_schema("{}")


def test_without_the_package_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with pytest.raises(CommandError) as caught:
        GrammarCompiler(byte_pairs(), [0], 96).compile_json_schema("{}")
    assert str(caught.value) == MISSING
