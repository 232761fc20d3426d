from __future__ import annotations

import copy

import pytest

from pipelines.core.decoding import Generation
from pipelines.core.interfaces import Head
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.models.generate import continue_prompts, filled_on_the_left, how, prompt_ids
from tests import tiny


def asked(content, templated=False):
    return Dialogue(
        ({"role": "user", "content": content}, {"role": "assistant", "content": "x"}), (False, True), templated
    )


def model(**overrides):
    found = tiny.build("finery", Head("causal_lm"), family="decoder", initializer_range=0.6, **overrides).eval()
    found.generation_config.eos_token_id = tiny.tokenizer().eos_token_id
    return found


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_prompts_in_batches_are_answered_as_they_are_alone(position):
    writer, tokenizer = model(position=position), copy.deepcopy(tiny.tokenizer())
    settings = how(writer, tokenizer, Generation(max_new_tokens=8))
    rows = [asked(text) for text in tiny.TEXTS[:7]]
    together = continue_prompts(writer, tokenizer, rows, settings, batch_size=4)
    alone = [continue_prompts(writer, tokenizer, [row], settings)[0] for row in rows]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


def test_greedy_is_the_default_and_beams_are_taken_where_they_are_named():
    writer, tokenizer = model(), tiny.tokenizer()
    assert how(writer, tokenizer, Generation()).words() == {
        "num_beams": 1,
        "max_new_tokens": 24,
        "do_sample": False,
    }  # half of 48 positions
    assert how(writer, tokenizer, Generation(num_beams=3, max_new_tokens=5)).config.num_beams == 3


def test_every_token_that_ends_an_answer_ends_it():
    writer, tokenizer = model(), tiny.tokenizer()
    writer.generation_config.eos_token_id = [7, 9]
    assert how(writer, tokenizer, Generation()).config.eos_token_id == sorted({7, 9, tokenizer.eos_token_id})


def test_a_prompt_that_is_too_long_keeps_what_asks_for_the_answer():
    writer, tokenizer = model(), copy.deepcopy(tiny.tokenizer())
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


def test_filling_by_hand():
    ids, real = filled_on_the_left([[1, 2, 3], [4]], 0)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert real.tolist() == [[1, 1, 1], [0, 0, 1]]
