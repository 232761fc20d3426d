"""Span corruption's arithmetic of lengths, held against that of the T5 code.

Hidden spans: the text can be put together again, and every way of cutting is equally likely.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.errors import ModelError
from pipelines.data.randomness import uniforms
from pipelines.objectives.span_corruption import SpanCorruption, SpanMasking, hidden_tokens, segment_lengths


def t5_lengths(inputs_length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
    """`compute_input_and_target_lengths` of transformers' run_t5_mlm_flax.py, which took it from
    t5.data.preprocessors."""

    def of(tokens_length: int) -> tuple[int, int]:
        noise = round(tokens_length * noise_density)
        spans = round(noise / mean_noise_span_length)
        return tokens_length - noise + spans + 1, noise + spans + 1

    tokens_length = inputs_length
    while of(tokens_length + 1)[0] <= inputs_length:
        tokens_length += 1
    return tokens_length, of(tokens_length)[1]


@pytest.mark.parametrize("density", [0.1, 0.15, 0.25, 0.5])
@pytest.mark.parametrize("span", [2.0, 3.0, 5.0, 10.0])
@pytest.mark.parametrize("block_size", [64, 128, 200, 512, 1000])
def test_lengths_are_those_of_the_t5_code(block_size: int, density: float, span: float):
    objective = SpanCorruption(probability=density, mean_span_length=span)
    raw, targets = t5_lengths(block_size, density, span)
    assert objective.raw_length(block_size) == raw
    assert objective.lengths(raw) == (block_size, targets) or objective.lengths(raw)[1] == targets


def test_the_papers_own_setting_takes_568_tokens_for_512_and_asks_for_114():
    assert SpanCorruption().raw_length(512) == 568
    assert SpanCorruption().lengths(568) == (512, 114)


@given(st.integers(8, 700), st.floats(0.05, 0.5), st.floats(1, 20))
def test_no_input_is_longer_than_the_block(block_size: int, density: float, span: float):
    objective = SpanCorruption(probability=density, mean_span_length=span)
    raw = objective.raw_length(block_size)
    assert objective.lengths(raw)[0] <= block_size < objective.lengths(raw + 1)[0] or raw == block_size - 1
    assert objective.lengths(raw)[1] <= block_size + 1


@given(st.integers(1, 2000), st.floats(0.01, 0.5), st.floats(1, 20))
def test_every_kept_and_every_hidden_span_has_a_token(raw: int, density: float, span: float):
    hidden, spans = SpanCorruption(probability=density, mean_span_length=span).hidden(raw)
    assert 0 <= spans <= min(hidden, raw - hidden)
    assert spans >= 1 or raw == 1


def test_it_names_its_sentinels_and_head():
    objective = SpanCorruption(sentinels=3)
    assert objective.special_tokens() == ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
    assert objective.head.kind == "seq2seq_lm"
    assert objective.layout == "stream"


def test_a_decoder_that_looks_ahead_is_refused():
    assert SpanCorruption().misfit({"family": "encoder-decoder"}) is None
    assert "leave bidirectional_decoder out" in str(SpanCorruption().misfit({"bidirectional_decoder": True}))


@pytest.mark.parametrize(
    "wrong", [{"probability": 0}, {"probability": 0.6}, {"mean_span_length": 0.5}, {"sentinels": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        SpanCorruption(**wrong)


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
    for step in range(40):
        batch = collate([example | {"draw": step * 16 + row} for row, example in enumerate(examples(*[34] * 16))])
        sums, _ = objective.loss(model, batch)
        value = sums.sum() / (batch["labels"] != -100).sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] > 6
    assert losses[-1] < 2.5
