"""Mask-predict against the algorithm written out for one text, one length and one word at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.architectures import FineryForConditionalGeneration
from pipelines.architectures.modeling_finery_language import least_sure, likely_lengths

MASK, PADDING = 3, 0


def model_of(tiny, **fields) -> FineryForConditionalGeneration:
    torch.manual_seed(4)
    shape = {"family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True, "vocab_size": 30}
    model = FineryForConditionalGeneration(tiny(**{**shape, **fields})).eval()
    with torch.no_grad():
        model.length_head.weight.mul_(5)
        model.lm_head.weight.mul_(3)
    return model


@torch.no_grad()
def slow_mask_predict(model, source, iterations, length_beam, excluded=()):
    """Section 3 of the paper for one text (1, key) without padding; returns the words and the score."""
    mean = model.get_encoder()(source).last_hidden_state[0].mean(0)
    lengths = model.length_head(mean)
    lengths[0] = -torch.inf
    answers = []
    for length in lengths.argsort(descending=True)[:length_beam].tolist():
        words, sureness = [MASK] * length, [0.0] * length
        for done in range(iterations):
            masked = length * (iterations - done) // iterations
            places = sorted(range(length), key=lambda place: (sureness[place], place))[:masked]
            for place in places:
                words[place] = MASK
            logits = model(source, decoder_input_ids=torch.tensor([words])).logits[0]
            logits[:, [MASK, PADDING, *excluded]] = -torch.inf
            for place in places:
                sureness[place], words[place] = (kind.item() for kind in logits[place].log_softmax(-1).max(-1))
        answers.append((sum(sureness) / length, words))
    return max(answers, key=lambda answer: answer[0])[1]


@pytest.mark.parametrize(("iterations", "length_beam"), [(1, 1), (4, 1), (4, 3), (10, 5)])
def test_each_text_gets_the_answer_of_the_slow_algorithm(tiny, iterations, length_beam):
    model = model_of(tiny)
    sources = [torch.randint(5, 30, (1, length)) for length in (9, 5, 7)]
    expected = [slow_mask_predict(model, source, iterations, length_beam) for source in sources]
    width = max(source.shape[1] for source in sources)
    ids = torch.cat([torch.nn.functional.pad(source, (0, width - source.shape[1])) for source in sources])
    found = model.mask_predict(
        ids, attention_mask=(ids != 0).long(), mask_token_id=MASK, iterations=iterations, length_beam=length_beam
    )
    assert [[word for word in row if word != PADDING] for row in found.tolist()] == expected
    assert len({len(words) for words in expected}) > 1 or length_beam == 1


def test_excluded_words_are_never_predicted(tiny):
    model = model_of(tiny)
    source = torch.randint(5, 30, (1, 6))
    usual = model.mask_predict(source, mask_token_id=MASK, iterations=3, length_beam=2)
    excluded = tuple(set(usual.flatten().tolist()))
    found = model.mask_predict(source, mask_token_id=MASK, iterations=3, length_beam=2, excluded=excluded)
    assert not set(found.flatten().tolist()) & {*excluded, MASK, PADDING}
    assert found[0].tolist() == slow_mask_predict(model, source, 3, 2, excluded)


@given(st.integers(1, 30), st.integers(1, 12))
def test_fewer_words_are_masked_with_each_iteration_and_none_at_the_end(length, iterations):
    """N (T - t) / T words before iteration t, which is all of them before the first."""
    counts = [length * (iterations - done) // iterations for done in range(iterations + 1)]
    assert counts[0] == length
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)


def test_the_least_sure_are_the_real_ones_with_the_lowest_probability():
    sureness = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-5.0, -5.0, -1.0, 0.0]])
    real = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert least_sure(sureness, real, torch.tensor([2, 1])).tolist() == [
        [False, True, True, False],
        [True, False, False, False],
    ]


def test_lengths_are_at_least_one_and_as_many_as_there_are():
    logits = torch.tensor([[9.0, 1.0, 3.0, 2.0]])
    assert likely_lengths(logits, 2).tolist() == [[2, 3]]
    assert likely_lengths(logits, 9).tolist() == [[2, 3, 1]]


@pytest.mark.parametrize("missing", ["bidirectional_decoder", "length_prediction"])
def test_a_model_that_was_not_built_for_it_is_refused(tiny, missing):
    shape = {"family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True, missing: False}
    model = FineryForConditionalGeneration(tiny(**shape))
    with pytest.raises(ValueError, match="built and trained with bidirectional_decoder and length_prediction"):
        model.mask_predict(torch.ones(1, 3, dtype=torch.long), mask_token_id=MASK)


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"length_beam": 0}])
def test_counts_below_one_are_refused(tiny, wrong):
    with pytest.raises(ValueError, match="both must be at least 1"):
        model_of(tiny).mask_predict(torch.ones(1, 3, dtype=torch.long), mask_token_id=MASK, **wrong)
