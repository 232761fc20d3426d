"""Pairs that are read in both orders: texts exchange their places, and the decision is about the sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.architectures import FineryConfig, FineryForSequenceClassification
from pipelines.architectures.modeling_finery_classification import behind, exchange

PAD, START, DELIMITER, EXTRACT = 0, 1, 2, 3
MARKS = (START, DELIMITER, EXTRACT)
texts = st.lists(st.integers(4, 9), max_size=5)


def row(*parts: list[int]) -> list[int]:
    """The texts with the tokens around them; a single text has no delimiter."""
    return [START, *parts[0], *(token for part in parts[1:] for token in (DELIMITER, *part)), EXTRACT]


def filled(rows: list[list[int]], left: bool) -> torch.Tensor:
    longest = max(map(len, rows))
    spaces = [[PAD] * (longest - len(each)) for each in rows]
    return torch.tensor(
        [[*space, *each] if left else [*each, *space] for each, space in zip(rows, spaces, strict=True)]
    )


@given(st.lists(st.tuples(texts, texts | st.none()), min_size=1, max_size=4), st.booleans())
def test_the_texts_of_a_pair_exchange_their_places_and_nothing_else_moves(
    rows: list[tuple[list[int], list[int] | None]], left: bool
):
    given_rows = [row(a) if b is None else row(a, b) for a, b in rows]
    wanted = [row(a) if b is None else row(b, a) for a, b in rows]
    found, pairs = exchange(filled(given_rows, left), *MARKS)
    assert torch.equal(found, filled(wanted, left))
    assert pairs.tolist() == [b is not None for _, b in rows]
    assert torch.equal(exchange(found, *MARKS)[0], filled(given_rows, left))


def test_the_second_text_and_its_end_are_the_second_segment():
    assert behind(filled([row([5, 6], [7]), row([5])], left=False), DELIMITER).tolist() == [
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0],
    ]


@pytest.fixture(scope="module")
def model() -> FineryForSequenceClassification:
    torch.manual_seed(0)
    config = FineryConfig(
        family="decoder",
        vocab_size=10,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        type_vocab_size=2,
        max_position_embeddings=16,
        pad_token_id=PAD,
        num_labels=3,
        initializer_range=0.5,
    )
    config.both_orders = list(MARKS)
    return FineryForSequenceClassification(config).eval()


def read(model: FineryForSequenceClassification, ids: torch.Tensor) -> torch.Tensor:
    inputs = {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "token_type_ids": behind(ids, DELIMITER) * (ids != PAD),
    }
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("left", [False, True])
def test_the_answer_is_the_head_s_answer_to_the_sum_of_both_readings(
    model: FineryForSequenceClassification, left: bool
):
    one, other = (
        filled([row([5, 6, 7], [8]), row([9, 4], [6, 6, 5])], left),
        filled([row([8], [5, 6, 7]), row([6, 6, 5], [9, 4])], left),
    )
    hidden = []
    for ids in (one, other):
        with torch.no_grad():
            tokens = model.model(
                input_ids=ids, attention_mask=(ids != PAD).long(), token_type_ids=behind(ids, DELIMITER)
            ).last_hidden_state
        hidden.append(tokens[ids == EXTRACT])
    torch.testing.assert_close(read(model, one), model.classifier(hidden[0] + hidden[1]).detach())
    torch.testing.assert_close(read(model, one), read(model, other))
    assert not torch.allclose(
        model.classifier(hidden[0]), model.classifier(hidden[1])
    )  # the probe itself works: order matters


def test_a_single_text_is_read_once(model: FineryForSequenceClassification):
    ids = filled([row([5, 6]), row([7], [8])], left=False)
    counted = []
    hook = model.model.register_forward_hook(lambda *_: counted.append(1))
    alone = read(model, ids[:1])
    assert len(counted) == 1
    torch.testing.assert_close(read(model, ids)[:1], alone)
    hook.remove()


def test_it_stays_with_the_checkpoint(model: FineryForSequenceClassification, tmp_path):
    ids = filled([row([5, 6, 7], [8])], left=False)
    model.save_pretrained(tmp_path)
    again = FineryForSequenceClassification.from_pretrained(tmp_path).eval()
    assert again.config.both_orders == list(MARKS)
    torch.testing.assert_close(read(again, ids), read(model, ids))


def test_embeddings_in_place_of_tokens_are_refused(model: FineryForSequenceClassification):
    with pytest.raises(ValueError, match="both orders: it takes input_ids"):
        model(inputs_embeds=torch.zeros(1, 4, 16))
