"""Span corruption's arithmetic of lengths, held against that of the T5 code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.objectives.span_corruption import SpanCorruption


def t5_lengths(inputs_length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
    """`compute_input_and_target_lengths` of transformers' run_t5_mlm_flax.py, which took it from t5.data.preprocessors."""

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
