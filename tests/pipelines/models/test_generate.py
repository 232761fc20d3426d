"""Texts that a model writes: beams, mask-predict, continuations."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from pipelines.core.decoding import Generation
from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Head, Rows, World
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.models.generate import continue_prompts, decoder, how, prompt_ids, write
from tests import tiny


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from pipelines.data.tokenizers.wordpiece import WordPiece

    return WordPiece(min_frequency=1).train(
        ["a the cat dog film book good bad fine dull is was not very on in it saw read runs sleeps . , ?"] * 3, 100
    )


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        initializer_factor=3.0,
        decoder_start_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    return T5ForConditionalGeneration(config).eval()


@pytest.fixture
def rows(sentences: Rows) -> Rows:
    return Rows(sentences.texts, None, list(sentences.texts), sentences.index)


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_generate_one_by_one(model: Any, tokenizer: Any, rows: Rows, beams: int):
    rows = Rows(rows.texts[:20], None, rows.texts[:20], rows.index[:20])
    found = write(model, tokenizer, rows, 64, Generation(num_beams=beams, max_new_tokens=8), batch_size=7)
    for text, written in zip(rows.texts, found, strict=True):
        ids = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        beam = {"length_penalty": 1.0} if beams > 1 else {}
        expected = model.generate(**ids, num_beams=beams, max_new_tokens=8, do_sample=False, **beam)
        assert written == tokenizer.decode(expected[0], skip_special_tokens=True).strip()
    assert len(set(found)) > 10


def test_the_settings_reach_the_search(model: Any, tokenizer: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    search = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **inputs: seen.append(inputs["generation_config"]) or search(**inputs)
    )
    write(model, tokenizer, rows, 64, Generation(num_beams=3, max_new_tokens=3, length_penalty=0.6), batch_size=64)
    config = seen[0]
    assert (config.num_beams, config.max_new_tokens, config.length_penalty, config.do_sample) == (3, 3, 0.6, False)
    assert (config.decoder_start_token_id, config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.sep_token_id)
    assert model.generation_config.num_beams in (None, 1)  # the model's own settings are left alone


def test_the_trained_target_length_is_the_default(model: Any, tokenizer: Any, rows: Rows):
    short = write(model, tokenizer, rows, 64, Generation(num_beams=1), target_length=2)
    asked = write(model, tokenizer, rows, 64, Generation(num_beams=1, max_new_tokens=2), target_length=50)
    assert short.tolist() == asked.tolist()
    assert all(len(text.split()) <= 2 for text in short)
    assert any(
        len(text.split()) > 2 for text in write(model, tokenizer, rows, 64, Generation(num_beams=1), target_length=9)
    )


def test_two_processes_write_what_one_does(model: Any, tokenizer: Any, rows: Rows):
    settings = Generation(num_beams=2, max_new_tokens=5)
    alone = write(model, tokenizer, rows, 64, settings, batch_size=6)
    barrier, values = threading.Barrier(2), [None, None]
    found: dict[int, Any] = {}

    def rank(number: int) -> None:
        def gather(value: Any) -> list[Any]:
            values[number] = value
            barrier.wait(60)
            return list(values)

        found[number] = write(model, tokenizer, rows, 64, settings, world=World(number, 2), gather=gather, batch_size=6)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    np.testing.assert_array_equal(found[0], alone)
    np.testing.assert_array_equal(found[1], alone)


def test_a_model_that_decodes_by_masks_is_asked_to():
    asked: dict[str, Any] = {}

    def mask_predict(input_ids: Any, **settings: Any) -> Any:
        asked.update(settings)
        return input_ids

    model = SimpleNamespace(config=SimpleNamespace(bidirectional_decoder=True), mask_predict=mask_predict)
    tokenizer = SimpleNamespace(mask_token_id=4, all_special_ids=[0, 1, 2, 3, 4])
    assert decoder(model, tokenizer, Generation(iterations=3, length_beam=2), None)("ids", "mask") == "ids"
    assert asked == {
        "attention_mask": "mask",
        "mask_token_id": 4,
        "iterations": 3,
        "length_beam": 2,
        "excluded": (0, 1, 2, 3, 4),
    }
    with pytest.raises(ModelError, match="the tokenizer has no mask token"):
        decoder(model, SimpleNamespace(mask_token_id=None), Generation(), None)


def test_no_rows_are_one_sentence(model: Any, tokenizer: Any):
    with pytest.raises(DataError, match="no rows"):
        write(model, tokenizer, Rows([], None, [], []), 64, Generation())


def asked(content, templated=False):
    return Dialogue(
        ({"role": "user", "content": content}, {"role": "assistant", "content": "x"}), (False, True), templated
    )


def decoder_of(**overrides):
    found = tiny.build("finery", Head("causal_lm"), family="decoder", initializer_range=0.6, **overrides).eval()
    found.generation_config.eos_token_id = tiny.tokenizer().eos_token_id
    return found


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_prompts_in_batches_are_answered_as_they_are_alone(position):
    writer, tokenizer = decoder_of(position=position), copy.deepcopy(tiny.tokenizer())
    settings = how(writer, tokenizer, Generation(max_new_tokens=8))
    rows = [asked(text) for text in tiny.TEXTS[:7]]
    together = continue_prompts(writer, tokenizer, rows, settings, batch_size=4)
    alone = [continue_prompts(writer, tokenizer, [row], settings)[0] for row in rows]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


def test_greedy_is_the_default_and_beams_are_taken_where_they_are_named():
    writer, tokenizer = decoder_of(), tiny.tokenizer()
    assert how(writer, tokenizer, Generation()).words() == {
        "num_beams": 1,
        "max_new_tokens": 24,
        "do_sample": False,
    }  # half of 48 positions
    assert how(writer, tokenizer, Generation(num_beams=3, max_new_tokens=5)).config.num_beams == 3


def test_every_token_that_ends_an_answer_ends_it():
    writer, tokenizer = decoder_of(), tiny.tokenizer()
    writer.generation_config.eos_token_id = [7, 9]
    assert how(writer, tokenizer, Generation()).config.eos_token_id == sorted({7, 9, tokenizer.eos_token_id})
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = TEMPLATES["chatml"]
    ends = {7, 9, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert how(writer, tokenizer, Generation()).config.eos_token_id == sorted(ends)


def test_a_prompt_that_is_too_long_keeps_what_asks_for_the_answer():
    writer, tokenizer = decoder_of(), copy.deepcopy(tiny.tokenizer())
    settings = how(writer, tokenizer, Generation(max_new_tokens=8))
    assert settings.longest_prompt == 40
    long = asked("film " * 100 + "the cat saw a dog")
    written = continue_prompts(writer, tokenizer, [long], settings)[0]
    cut = asked("film " * 35 + "the cat saw a dog")  # the last 40 tokens
    assert written == continue_prompts(writer, tokenizer, [cut], settings)[0]


def test_a_prompt_has_the_tokens_of_its_template():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = TEMPLATES["simple"]
    text = "User:\nthe cat\n\nAssistant:\n"
    assert (
        prompt_ids(tokenizer, asked("the cat", templated=True))
        == tokenizer(text, add_special_tokens=False)["input_ids"]
    )
