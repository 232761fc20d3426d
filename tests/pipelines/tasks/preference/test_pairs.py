from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.completions import prompt_room, shortened
from pipelines.data.reward_inputs import RewardInputFormat, encode_scored
from pipelines.tasks.preference.pairs import PreferenceCollator, encode_preferences
from pipelines.tasks.preference.rows import PreferenceRows
from tests import tiny


def rows(*triples, templated=False, margins=None):
    def side(prompt, answer):
        return Dialogue(
            ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer}), (False, True), templated
        )

    return PreferenceRows(
        [prompt for prompt, _, _ in triples],
        None,
        [0] * len(triples),
        list(range(10, 10 + len(triples))),
        [side(prompt, chosen) for prompt, chosen, _ in triples],
        [side(prompt, rejected) for prompt, _, rejected in triples],
        margins,
    )


PLAIN = rows(("the cat", " runs", " sleeps on it"), ("a dog", " is good", " is bad"))


def ids(text):
    return tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]


def test_a_row_is_the_prompt_and_one_answer_whose_end_is_learnt_too():
    end = tiny.tokenizer().sep_token_id
    pairs = encode_preferences(tiny.tokenizer(), PLAIN, 40)
    assert pairs[0]["chosen"] == [*ids("the cat"), *ids(" runs"), end]
    assert pairs[0]["chosen_labels"] == [IGNORED] * 2 + [*ids(" runs"), end]
    assert pairs[0]["rejected"] == [*ids("the cat"), *ids(" sleeps on it"), end]
    assert pairs.index == [10, 11]
    assert (pairs.truncated, pairs.left_out) == (0, ())
    assert pairs.lengths.tolist() == [6, 5]


def test_no_end_is_learnt_behind_an_answer_that_was_cut():
    end = tiny.tokenizer().sep_token_id
    chosen = [replace(said, cut=True) for said in PLAIN.chosen]
    pairs = encode_preferences(tiny.tokenizer(), replace(PLAIN, chosen=chosen), 40)
    assert pairs[0]["chosen_labels"] == [IGNORED] * 2 + ids(" runs")
    assert pairs[0]["rejected_labels"][-1] == end
    targets = encode_preferences(tiny.tokenizer(), replace(PLAIN, chosen=chosen), 40, encoder_decoder=True)
    whole = encode_preferences(tiny.tokenizer(), PLAIN, 40, encoder_decoder=True)
    assert whole[0]["chosen"][-1] == end
    assert targets[0]["chosen"] == whole[0]["chosen"][:-1]
    assert targets[0]["rejected"] == whole[0]["rejected"]


def test_a_reward_model_always_reads_an_end_for_so_it_scores():
    end = tiny.tokenizer().sep_token_id
    chosen = [replace(said, cut=True) for said in PLAIN.chosen]
    read = encode_scored(tiny.tokenizer(), chosen, RewardInputFormat("text", 40))
    assert read.input_ids[0] == [*ids("the cat"), *ids(" runs"), end]


def test_a_template_joins_them_and_only_the_last_answer_is_learnt():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = TEMPLATES["simple"]
    chat = tuple(
        {"role": ("user", "assistant")[at % 2], "content": text}
        for at, text in enumerate(("the cat", "is", "a dog", "runs"))
    )
    other = (*chat[:3], {"role": "assistant", "content": "sleeps"})
    both = [Dialogue(messages, (False, False, False, True)) for messages in (chat, other)]
    pairs = encode_preferences(tokenizer, PreferenceRows(["x"], None, [0], [0], both[:1], both[1:]), 60)
    for side, word in (("chosen", "runs"), ("rejected", "sleeps")):
        learnt = [token for token in pairs[0][f"{side}_labels"] if token != IGNORED]
        assert tokenizer.decode(learnt).split() == [word, "[SEP]"]


def test_both_answers_stand_behind_the_same_cut_prompt():
    long = rows((" ".join(tiny.WORDS), " good", " bad dull fine"))
    pairs = encode_preferences(tiny.tokenizer(), long, 12)
    kept = ids(" ".join(tiny.WORDS))[-8:]  # the longer answer has three words and its end
    assert pairs[0]["chosen"][:8] == pairs[0]["rejected"][:8] == kept
    assert len(pairs[0]["rejected"]) == 12
    assert pairs.truncated == 1
    assert encode_preferences(tiny.tokenizer(), long, 12, 3)[0]["chosen"][:3] == kept[-3:]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 30), st.none() | st.integers(1, 30), st.integers(0, 40))
def test_a_prompt_never_loses_more_than_it_must_and_never_fills_the_row(answer, limit, most, prompt):
    kept = len(shortened(list(range(prompt)), prompt_room(answer, limit, most)))
    room = limit - kept
    assert kept <= prompt
    assert room >= min(answer, limit - limit // 2)
    if prompt + answer <= limit and (most is None or prompt <= most):
        assert kept == prompt
    if most is not None:
        assert kept <= most


def test_what_opens_every_text_stays():
    assert shortened([1, 5, 6, 7, 8], 3, [1]) == [1, 7, 8]
    assert shortened([5, 6, 7, 8], 3, [1]) == [6, 7, 8]


def test_pairs_that_no_longer_differ_are_left_out_and_named():
    same = rows(("the cat", " is good and fine", " is good and dull"), ("a dog", " runs", " sleeps"))
    pairs = encode_preferences(tiny.tokenizer(), same, 5)
    assert (pairs.index, pairs.left_out) == ([11], (10,))
    with pytest.raises(DataError, match="no pair of the 1 rows is left: within 5 tokens"):
        encode_preferences(tiny.tokenizer(), rows(("the cat", " is good and fine", " is good and dull")), 5)


def test_a_batch_is_the_chosen_rows_and_then_the_rejected_ones():
    pairs = encode_preferences(
        tiny.tokenizer(),
        rows(("the cat", " runs", " sleeps on it"), ("a dog", " is good", " is bad"), margins=[0.5, 2.0]),
        40,
    )
    batch = PreferenceCollator(0)([pairs[0], pairs[1]])
    assert batch["input_ids"].shape == (4, 6)
    for row, (side, at) in enumerate((side, at) for side in ("chosen", "rejected") for at in range(2)):
        alone, labels = pairs[at][side], pairs[at][f"{side}_labels"]
        assert batch["input_ids"][row, : len(alone)].tolist() == alone
        assert batch["attention_mask"][row].sum() == len(alone)
        named = batch["labels"][row]
        assert named[: len(alone) - 1].tolist() == labels[1:]  # each label at the place before it
        assert (named[len(alone) - 1 :] == IGNORED).all()
    assert batch["pairs"].tolist() == [1, 1]
    assert batch["margin"].tolist() == [0.5, 2.0]


@pytest.mark.parametrize(("at_most", "length"), [(40, 8), (7, 7), (5, 6)])
def test_a_batch_can_be_as_long_as_a_multiple(at_most, length):
    pairs = encode_preferences(tiny.tokenizer(), rows(("the cat", " runs", " sleeps on it")), 40)
    short = PreferenceCollator(0)([pairs[0]])
    batch = PreferenceCollator(0, pad_to_multiple_of=8, at_most=at_most)([pairs[0]])
    for name, filled in (("input_ids", 0), ("attention_mask", 0), ("labels", IGNORED)):
        assert batch[name].shape == (2, length)
        assert torch.equal(batch[name][:, :6], short[name])
        assert (batch[name][:, 6:] == filled).all()


def test_an_encoder_decoder_reads_the_prompt_once_a_side_and_writes_the_answer():
    tokenizer = tiny.tokenizer()
    pairs = encode_preferences(tokenizer, PLAIN, 40, encoder_decoder=True)
    assert pairs[0]["source"] == tokenizer("the cat")["input_ids"]
    assert pairs[0]["chosen"] == pairs[0]["chosen_labels"] == tokenizer(text_target=" runs")["input_ids"]
    start = pairs[0]["chosen"][0]
    batch = PreferenceCollator(0, start)([pairs[0], pairs[1]])
    assert batch["input_ids"].tolist()[:2] == batch["input_ids"].tolist()[2:]
    for row, (side, at) in enumerate((side, at) for side in ("chosen", "rejected") for at in range(2)):
        target = pairs[at][side][1:]  # it begins with what the decoder begins with
        assert batch["labels"][row, : len(target)].tolist() == target
        assert batch["decoder_input_ids"][row, : len(target)].tolist() == [start, *target[:-1]]
        assert (batch["labels"][row, len(target) :] == IGNORED).all()


def test_an_encoder_decoder_s_lengths_are_bounds_of_their_own():
    pairs = encode_preferences(
        tiny.tokenizer(), rows((" ".join(tiny.WORDS), " good bad dull fine", " bad")), 4, 6, encoder_decoder=True
    )
    assert (len(pairs[0]["source"]), len(pairs[0]["chosen"])) == (6, 4)
    assert (pairs.truncated, pairs.lengths.tolist()) == (1, [10])


def test_rows_are_chosen_by_their_places():
    pairs = encode_preferences(tiny.tokenizer(), PLAIN, 40)
    picked = pairs.select(np.array([1, 0]))
    assert picked.index == [11, 10]
    assert picked[0] == pairs[1]
    assert picked.lengths.tolist() == pairs.lengths[::-1].tolist()
