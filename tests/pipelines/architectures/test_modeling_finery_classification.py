"""Heads that classify or score, on every family, and pairs that are read in both orders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipelines.architectures import (
    FineryConfig,
    FineryForMultipleChoice,
    FineryForQuestionAnswering,
    FineryForReward,
    FineryForSequenceClassification,
    FineryForTokenClassification,
)
from pipelines.architectures.configuration_rules import FAMILIES
from pipelines.architectures.modeling_finery import shifted_right
from pipelines.architectures.modeling_finery_classification import behind, exchange

each_family = pytest.mark.parametrize("family", FAMILIES)
ON_TEXTS = [FineryForSequenceClassification, FineryForReward]


def built(head: type, tiny, family: str, **fields):
    torch.manual_seed(0)
    model = head(tiny(family=family, type_vocab_size=None, bos_token_id=3, **fields)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def text_vectors(model, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What each text amounts to, text by text and without padding."""
    vectors = []
    for row, real in zip(ids, mask.bool(), strict=True):
        alone = row[real][None]
        if model.config.family == "encoder":
            vectors.append(model.model(alone).pooler_output[0])
        elif model.config.family == "decoder":
            vectors.append(model.model(alone).last_hidden_state[0, -1])
        else:
            shifted = shifted_right(alone, model.config)
            vectors.append(model.model(alone, decoder_input_ids=shifted).last_hidden_state[0, -1])
    return torch.stack(vectors)


@pytest.mark.parametrize(
    ("family", "side"),
    [
        ("encoder", "right"),
        ("decoder", "right"),
        ("decoder", "left"),
        ("encoder-decoder", "right"),
        ("encoder-decoder", "left"),
    ],
)
@pytest.mark.parametrize("head", ON_TEXTS, ids=lambda head: head.__name__)
@torch.no_grad()
def test_a_text_is_judged_by_its_pooled_first_token_or_by_its_last_one(tiny, batch, family, head, side):
    model = built(head, tiny, family, num_labels=3)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if side == "left":
        ids, mask = torch.stack([ids[0], ids[1].roll(3)]), torch.stack([mask[0], mask[1].roll(3)])
    matrix = model.classifier if head is FineryForSequenceClassification else model.score
    expected = matrix(text_vectors(model, ids, mask))
    found = model(input_ids=ids, attention_mask=mask).logits
    if side == "left" and family == "encoder-decoder":  # its encoder counts positions from the padding, as BERT does
        expected, found = expected[:1], found[:1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.shape[-1] == (3 if head is FineryForSequenceClassification else 1)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_without_a_mask_the_padding_token_tells_where_a_text_ends(tiny, batch, family):
    model = built(FineryForReward, tiny, family)
    ids = batch["input_ids"]
    ends = {"decoder": model.model(ids).last_hidden_state}
    if family == "encoder-decoder":
        ends[family] = model.model(ids, decoder_input_ids=shifted_right(ids, model.config)).last_hidden_state
    expected = model.score(torch.stack([ends[family][0, 8], ends[family][1, 5]]))
    torch.testing.assert_close(model(ids).logits, expected)


@torch.no_grad()
def test_a_decoders_own_input_is_judged_if_it_is_given(tiny, batch):
    model = built(FineryForReward, tiny, "encoder-decoder")
    own, mask = torch.tensor([[3, 9, 8, 7], [3, 9, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "decoder_input_ids": own}
    states = model.model(**inputs, decoder_attention_mask=mask).last_hidden_state
    expected = model.score(torch.stack([states[0, 3], states[1, 1]]))
    torch.testing.assert_close(model(**inputs, decoder_attention_mask=mask).logits, expected)
    torch.testing.assert_close(model(**inputs).logits, expected)


@each_family
def test_each_token_gets_a_class_and_ignored_ones_cost_nothing(tiny, batch, family):
    model = built(FineryForTokenClassification, tiny, family, num_labels=4)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    labels = torch.full((2, 9), -100)
    labels[0, 2], labels[1, 4] = 3, 1
    output = model(**inputs, labels=labels)
    assert output.logits.shape == (2, 9, 4)
    chosen = torch.stack([output.logits[0, 2], output.logits[1, 4]])
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(chosen, torch.tensor([3, 1])))
    torch.testing.assert_close(model(**inputs, labels=labels, num_items_in_batch=8).loss, output.loss * 2 / 8)
    states = model.model(**inputs).last_hidden_state
    torch.testing.assert_close(output.logits, model.classifier(states))
    assert "pooler.dense.weight" not in "".join(model.state_dict())


@each_family
def test_an_answers_ends_are_found_and_those_cut_off_cost_nothing(tiny, batch, family):
    model = built(FineryForQuestionAnswering, tiny, family)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    output = model(**inputs, start_positions=torch.tensor([2, 900]), end_positions=torch.tensor([[4], [5]]))
    starts, ends = output.start_logits, output.end_logits
    expected = nn.functional.cross_entropy(starts[:1], torch.tensor([2]))
    expected = (expected + nn.functional.cross_entropy(ends, torch.tensor([4, 5]))) / 2
    torch.testing.assert_close(output.loss, expected)
    assert starts.shape == ends.shape == (2, 9)
    both = model.qa_outputs(model.model(**inputs).last_hidden_state)
    torch.testing.assert_close(torch.stack([starts, ends], -1), both)


@each_family
def test_each_choice_is_judged_alone(tiny, batch, family):
    model = built(FineryForMultipleChoice, tiny, family)
    ids = torch.stack([batch["input_ids"], batch["input_ids"].flip(0), batch["input_ids"] * 1])
    mask = torch.stack([batch["attention_mask"], batch["attention_mask"].flip(0), batch["attention_mask"]])
    output = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([1, 0, 0]))
    assert output.logits.shape == (3, 2)
    for row in range(3):
        alone = model.classifier(text_vectors(model, ids[row], mask[row])).squeeze(-1)
        torch.testing.assert_close(output.logits[row], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(output.logits, torch.tensor([1, 0, 0])))


@each_family
def test_a_reward_learns_known_rewards_by_squared_distance(tiny, batch, family):
    model = built(FineryForReward, tiny, family)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    output = model(**inputs, labels=torch.tensor([0.5, -2.0]))
    assert output.logits.shape == (2, 1)
    torch.testing.assert_close(output.loss, (output.logits.squeeze(-1) - torch.tensor([0.5, -2.0])).square().mean())
    assert model(**inputs).loss is None


@pytest.mark.parametrize("head", [*ON_TEXTS, FineryForTokenClassification], ids=lambda head: head.__name__)
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_no_cache_is_made_for_a_text_that_is_judged(tiny, batch, family, head):
    output = built(head, tiny, family)(batch["input_ids"], batch["attention_mask"])
    assert output.get("past_key_values") is None


@each_family
@torch.no_grad()
def test_hidden_states_and_attentions_are_handed_on(tiny, batch, family):
    model = built(FineryForSequenceClassification, tiny, family, attn_implementation="eager", num_decoder_layers=None)
    output = model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True, output_attentions=True)
    if family == "encoder-decoder":
        assert len(output.encoder_hidden_states) == len(output.decoder_hidden_states) == 4
        assert len(output.encoder_attentions) == len(output.cross_attentions) == len(output.decoder_attentions) == 3
        assert not torch.equal(output.cross_attentions[0], output.decoder_attentions[0])
    else:
        assert len(output.hidden_states) == 4
        assert len(output.attentions) == 3


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
