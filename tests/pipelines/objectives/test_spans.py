"""Hidden spans: the text can be put together again, and every way of cutting is equally likely."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import ModelError
from pipelines.data.randomness import uniforms
from pipelines.objectives.span_corruption import SpanCorruption, SpanMasking, hidden_tokens, segment_lengths

PAD, END, START, FIRST_SENTINEL = 0, 1, 0, 1000


class Vocabulary:
    """What the collator asks of a tokenizer."""

    pad_token_id, eos_token_id, sep_token_id = PAD, END, None

    def __init__(self, sentinels: int = 100) -> None:
        self.sentinels = sentinels

    def get_vocab(self) -> dict[str, int]:
        return {f"<extra_id_{number}>": FIRST_SENTINEL + number for number in range(self.sentinels)}


def collator(objective: SpanCorruption | None = None, seed: int = 0) -> SpanMasking:
    return (objective or SpanCorruption()).collate(Vocabulary(), seed, SimpleNamespace(decoder_start_token_id=START))  # type: ignore[return-value]


def examples(*lengths: int) -> list[dict[str, Any]]:
    return [{"input_ids": np.arange(10, 10 + length), "draw": draw} for draw, length in enumerate(lengths)]


def put_together(source: list[int], target: list[int]) -> list[int]:
    """The text, token by token: each sentinel of the source stands for what follows it in the target."""
    assert source[-1] == target[-1] == END
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token >= FIRST_SENTINEL:
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    text: list[int] = []
    for token in source[:-1]:
        text += spans.pop(token) if token >= FIRST_SENTINEL else [token]
    assert not spans
    return text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.floats(0.05, 0.5), st.floats(1, 6), st.integers(0, 9))
def test_input_and_target_make_the_text_again(lengths: list[int], density: float, span: float, seed: int):
    objective = SpanCorruption(probability=density, mean_span_length=span)
    given_examples = examples(*lengths)
    batch = collator(objective, seed)(given_examples)
    for row, example in enumerate(given_examples):
        source = batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist()
        target = batch["labels"][row][batch["labels"][row] != -100].tolist()
        assert put_together(source, target) == example["input_ids"].tolist()
        assert (len(source), len(target)) == objective.lengths(lengths[row])
        assert batch["decoder_input_ids"][row, : len(target)].tolist() == [START, *target[:-1]]
        sentinels = [token for token in target if token >= FIRST_SENTINEL]
        assert sentinels == list(range(FIRST_SENTINEL, FIRST_SENTINEL + len(sentinels)))
        assert sentinels == [token for token in source if token >= FIRST_SENTINEL]


def test_a_block_is_filled_exactly_without_padding():
    objective = SpanCorruption()
    raw = objective.raw_length(128)
    batch = collator(objective)(examples(*[raw] * 8))
    assert batch["input_ids"].shape == (8, 128)
    assert batch["attention_mask"].all()
    assert (batch["labels"] != -100).all()
    assert batch["labels"].shape == (8, objective.lengths(raw)[1])


def test_fifteen_percent_in_spans_of_three_and_a_kept_one_first():
    raw = np.full(64, 568)
    hidden, spans = SpanCorruption().hidden(568)
    mask = hidden_tokens(raw, np.full(64, hidden), np.full(64, spans), 0, np.arange(64))
    assert (mask.sum(1) == 85).all()  # 15 % of 568 is 85.2
    starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    assert (starts.sum(1) == 28).all()  # 85 / 3 is 28.3
    assert not mask[:, 0].any()
    assert mask[:, -1].all()  # kept and hidden spans in turn, as many of each
    flat = np.pad(mask.ravel(), 1)  # every row begins with a kept token, so spans of two rows never touch
    lengths = np.diff(np.flatnonzero(flat[1:] != flat[:-1]))[::2]
    assert lengths.mean() == pytest.approx(85 / 28)
    assert lengths.max() > 6


def test_every_way_to_cut_is_equally_likely():
    """Five items make three segments in C(4, 2) = 6 ways."""
    count = 6000
    found = segment_lengths(np.full(count, 5), np.full(count, 3), uniforms(3, 1, np.arange(count), 5))
    assert (found.sum(1) == 5).all()
    ways = Counter(map(tuple, found.tolist()))
    assert set(ways) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert all(abs(number - 1000) < 150 for number in ways.values())  # five standard deviations


def test_seed_and_draw_decide_alone():
    alone = collator()(examples(50, 50, 50)[2:])
    together = collator()(examples(50, 50, 50))
    for name, value in alone.items():
        assert torch.equal(value[0], together[name][2])
    assert not torch.equal(collator(seed=1)(examples(50))["input_ids"], collator()(examples(50))["input_ids"])
    later = [example | {"draw": 77} for example in examples(50)]
    assert not torch.equal(collator()(later)["input_ids"], collator()(examples(50))["input_ids"])


def test_a_tokenizer_without_enough_sentinels_is_refused():
    config = SimpleNamespace(decoder_start_token_id=START)
    with pytest.raises(ModelError, match="no sentinel tokens <extra_id_0>"):
        SpanCorruption().collate(Vocabulary(0), 0, config)
    few = SpanCorruption().collate(Vocabulary(2), 0, config)
    few(examples(40))
    with pytest.raises(
        ModelError, match="200 tokens have 10 hidden spans, but the tokenizer has 2 sentinels; lower block_size"
    ):
        few(examples(200))


def test_a_t5_learns_to_fill_the_gaps_of_one_text():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=1100,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=START,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model, objective = T5ForConditionalGeneration(config), SpanCorruption()
    collate = objective.collate(Vocabulary(), 0, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(60):
        batch = collate([example | {"draw": step * 16 + row} for row, example in enumerate(examples(*[34] * 16))])
        sums, _ = objective.loss(model, batch)
        value = sums.sum() / (batch["labels"] != -100).sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] > 6
    assert losses[-1] < 2.5
