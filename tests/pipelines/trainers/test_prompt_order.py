"""The order of prompts: full batches, every prompt in every epoch, every completion with a number of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipelines.trainers.ppo_experience import PromptDraws, PromptOrder, together


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
