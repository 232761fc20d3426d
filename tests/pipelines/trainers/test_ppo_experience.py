"""The order of prompts: full batches, every prompt in every epoch, every completion with a number of its own.

How prompts and completions are shown to a model: every token named at the place from which it is named.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.trainers.ppo_experience import Experience, Layout, PromptDraws, PromptOrder, by_length, together


@given(prompts=st.integers(1, 30), batch=st.integers(1, 12), seed=st.integers(0, 5))
def test_every_epoch_asks_every_prompt_in_full_batches(prompts: int, batch: int, seed: int):
    order, rows = PromptOrder(prompts, batch, seed), PromptDraws(prompts, batch)
    draws: list[int] = []
    for epoch in range(3):
        order.epoch = epoch
        found = [rows[number] for number in order]
        assert len(found) == len(order) == len(rows)
        assert len(found) % batch == 0
        assert {each["row"] for each in found[:prompts]} == set(range(prompts))
        draws += [each["draw"] for each in found]
        assert list(order) == list(order_at(prompts, batch, seed, epoch))
    assert len(set(draws)) == len(draws)


def order_at(prompts: int, batch: int, seed: int, epoch: int) -> PromptOrder:
    order = PromptOrder(prompts, batch, seed)
    order.epoch = epoch
    return order


def test_a_prompt_asked_twice_gets_two_completions():
    order, rows = PromptOrder(2, 4, 0), PromptDraws(2, 4)
    batch = together([rows[number] for number in order])
    assert sorted(batch["row"].tolist()) == [0, 0, 1, 1]
    assert batch["draw"].tolist() == [0, 1, 2, 3]


PROMPTS, RESPONSES = [[5, 6, 7], [8]], [[11, 12], [13, 14, 15]]


def test_a_decoder_reads_both_as_one_text():
    found = Layout(pad=0, start=None).inputs(PROMPTS, RESPONSES, "cpu")
    assert found["input_ids"].tolist() == [[5, 6, 7, 11], [8, 13, 14, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert found["labels"].tolist() == [[-100, -100, 11, 12], [13, 14, 15, -100]]


def test_an_encoder_decoder_reads_them_apart():
    found = Layout(pad=0, start=2).inputs(PROMPTS, RESPONSES, "cpu")
    assert found["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert found["decoder_input_ids"].tolist() == [[2, 11, 0], [2, 13, 14]]
    assert found["labels"].tolist() == [[11, 12, -100], [13, 14, 15]]


def test_a_column_is_told_in_the_order_of_a_pass():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    column = torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]])
    experience = Experience(PROMPTS, RESPONSES, mask, column, column, column, column)
    assert experience.flat(column, [1, 0]).tolist() == [3, 4, 5, 1, 2]
    labels = experience.inputs(Layout(0, None), [1, 0])["labels"]
    assert labels[labels != -100].tolist() == [13, 14, 15, 11, 12]


def test_batches_hold_similar_lengths():
    assert list(by_length([3, 9, 4, 8], 2)) == [[1, 3], [2, 0]]
