import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.decoding import Generation
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.evaluation.few_shot.decoders import DecoderReader
from pipelines.evaluation.few_shot.encoders import MaskReader
from pipelines.evaluation.few_shot.writing import MOST_NEW, settings_of, until, write
from tests import tiny


@pytest.fixture(scope="module")
def reader():
    model = tiny.build("finery", Head("causal_lm"), family="decoder").eval()
    tiny.disturb(model)
    return DecoderReader(model, copy.deepcopy(tiny.tokenizer()))


def greedy(reader, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(reader.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return reader.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)


def test_what_is_written_is_what_greedy_search_finds(reader):
    prompts = [reader.context(text) for text in tiny.TEXTS[:5]]
    found = write(reader, prompts, ["\n"], Generation(num_beams=1, max_new_tokens=6), batch_size=2)
    assert [text.strip() for text in found] == [greedy(reader, prompt, 6).strip() for prompt in prompts]


def test_writing_ends_at_the_first_stop(reader):
    prompt = reader.context(tiny.TEXTS[2])
    whole = greedy(reader, prompt, 8)
    stop = whole.split()[2]
    [found] = write(reader, [prompt], [stop], Generation(num_beams=1, max_new_tokens=8))
    assert found == whole.partition(stop)[0]


def test_an_encoder_writes_nothing():
    asked = MaskReader(tiny.build("finery", Head("masked_lm")), tiny.tokenizer())
    with pytest.raises(ModelError, match="it writes no answers"):
        write(asked, [(1, 2)], ["\n"], Generation())


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_no_stop_is_left_in_a_text(text, stops):
    found = until(text, stops)
    assert text.startswith(found)
    assert not any(stop in found for stop in stops)


def test_answers_are_short_and_greedy_unless_the_stage_says_otherwise():
    assert settings_of(Generation()) == Generation(num_beams=1, max_new_tokens=MOST_NEW)
    assert settings_of(Generation(num_beams=4)).num_beams == 4
