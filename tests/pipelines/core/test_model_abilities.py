"""What a folder says of its model, and the sentences for questions that it does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.model_abilities import abilities_of
from tests import writers


def folder(place: Path, **files: Any) -> Path:
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / name.replace("_json", ".json").replace("_jinja", ".jinja")).write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    return place


@pytest.mark.parametrize(
    ("name", "kind", "can"),
    [
        ("FineryForCausalLM", "causal", ("complete",)),
        ("GPT2LMHeadModel", "causal", ("complete",)),
        ("T5ForConditionalGeneration", "seq2seq", ("complete",)),
        ("MarianMTModel", "seq2seq", ("complete",)),
        ("BertForMaskedLM", "encoder", ("embed",)),
        ("BertModel", "encoder", ("embed",)),
        ("BertForSequenceClassification", "classification", ("predict",)),
        ("BertForTokenClassification", "token_classification", ("predict",)),
        ("BertForQuestionAnswering", "qa", ("predict",)),
        ("BertForMultipleChoice", "multiple_choice", ("predict",)),
        ("FineryForReward", "reward", ("predict",)),
    ],
)
def test_the_class_of_a_checkpoint_says_what_it_can(tmp_path: Path, name: str, kind: str, can: tuple[str, ...]) -> None:
    found = abilities_of(folder(tmp_path, config_json={"architectures": [name]}))
    assert found is not None
    assert (found.kind, found.can) == (kind, can)


@pytest.mark.parametrize("files", [{"chat_template_jinja": "x"}, {"tokenizer_config_json": {"chat_template": "x"}}])
def test_a_chat_template_makes_a_model_chat(tmp_path: Path, files: dict[str, Any]) -> None:
    found = abilities_of(folder(tmp_path, config_json={"architectures": ["GPT2LMHeadModel"]}, **files))
    assert found is not None
    assert found.can == ("chat", "complete")


def test_an_adapter_is_what_its_head_is_and_else_what_its_base_is(tmp_path: Path) -> None:
    folder(tmp_path / "base", config_json={"architectures": ["BertForMaskedLM"]})
    assert abilities_of(tmp_path).kind == "encoder"  # type: ignore[union-attr]
    folder(tmp_path, head_json={"kind": "sequence_classification", "labels": ["a"]})
    assert abilities_of(tmp_path).kind == "classification"  # type: ignore[union-attr]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"architectures": null}', '{"architectures": []}'])
def test_a_folder_that_says_nothing_is_no_model(tmp_path: Path, content: str) -> None:
    assert abilities_of(folder(tmp_path, config_json=content)) is None


def test_a_model_that_writes_all_words_at_once_writes_nothing_here(tmp_path: Path) -> None:
    config = {"architectures": ["FineryForConditionalGeneration"], "bidirectional_decoder": True}
    assert abilities_of(folder(tmp_path, config_json=config)).can == ()  # type: ignore[union-attr]


def test_a_refusal_says_what_the_model_is_and_where_it_answers() -> None:
    generator = abilities_of(writers.folder("gpt2"))
    encoder = abilities_of(writers.folder("bert"))
    classifier = abilities_of(writers.folder("bert-classifier"))
    assert generator is not None
    assert encoder is not None
    assert classifier is not None
    assert generator.refusal("m", "embed") == (
        "The model 'm' continues texts: it answers /v1/completions, not /v1/embeddings."
    )
    assert generator.refusal("m", "chat") == "The model 'm' has no chat template; ask it at /v1/completions."
    assert encoder.refusal("m", "chat") == (
        "The model 'm' turns texts into vectors: it answers /v1/embeddings, not /v1/chat/completions."
    )
    assert classifier.refusal("m", "complete") == (
        "The model 'm' classifies texts: it answers /api/v1/models/m/predict, not /v1/completions."
    )
