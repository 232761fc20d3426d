"""Log-probabilities of completions in one pass, against one token at a time."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.models import log_probabilities
from pipelines.models.log_probabilities import (
    asked_everywhere,
    completion_log_probabilities,
    entropies_of,
    log_probabilities_of,
    sums,
    token_log_probabilities,
    without_dropout,
)
from tests import tiny

CAUSAL, SEQ2SEQ = Head("causal_lm"), Head("seq2seq_lm")
DECODERS = {"finery": {"family": "decoder"}, "gpt2": {}, "llama": {}}
ENCODER_DECODERS = {"finery": {"family": "encoder-decoder"}, "t5": {}, "bart": {}}


def asked(seed=0, rows=4, length=9):
    """Ids, their mask, and labels at the places from which they are named; two rows begin late and one ends early."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, len(tiny.tokenizer()), (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    labels = torch.full_like(ids, -100)
    labels[:, 3:-1] = ids[:, 4:]
    labels[1, 5:] = -100
    labels[2, :5] = -100
    return ids, mask, labels


def slowly(model, ids, labels, **others):
    """One row and one token at a time, from the logits of the whole row in double precision."""
    found = torch.zeros(labels.shape, dtype=torch.float64)
    for row in range(len(labels)):
        kept = {name: value[row : row + 1] for name, value in others.items()}
        logits = model(input_ids=ids[row : row + 1], **kept).logits[0].double()
        for place, label in enumerate(labels[row].tolist()):
            if label != -100:
                found[row, place] = logits[place].log_softmax(-1)[label]
    return found


@pytest.mark.parametrize("model_type", list(DECODERS))
@torch.no_grad()
def test_decoders_token_by_token(model_type):
    model = tiny.build(model_type, CAUSAL, **DECODERS[model_type]).eval()
    ids, mask, labels = asked()
    named = token_log_probabilities(
        model, {"input_ids": ids, "attention_mask": mask, "labels": labels, "pairs": torch.ones(2)}
    )
    assert torch.allclose(named.log_probabilities.double(), slowly(model, ids, labels, attention_mask=mask), atol=1e-5)
    assert (named.mask == (labels != -100)).all()
    assert named.entropies is None


@pytest.mark.parametrize("model_type", list(ENCODER_DECODERS))
@torch.no_grad()
def test_encoder_decoders_token_by_token(model_type):
    model = tiny.build(model_type, SEQ2SEQ, **ENCODER_DECODERS[model_type]).eval()
    ids, mask, _ = asked()
    written, _, labels = asked(seed=1, length=7)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": written, "labels": labels}
    named = token_log_probabilities(model, inputs)
    assert torch.allclose(
        named.log_probabilities.double(),
        slowly(model, ids, labels, attention_mask=mask, decoder_input_ids=written),
        atol=1e-5,
    )


@pytest.mark.parametrize("kept", [log_probabilities.LOGITS_KEPT, 0], ids=["logits", "chunks"])
@pytest.mark.parametrize("model_type", ["gpt2", "t5"])
def test_places_that_nobody_named_change_nothing(model_type, kept, monkeypatch):
    monkeypatch.setattr(log_probabilities, "LOGITS_KEPT", kept)
    both = model_type in ENCODER_DECODERS
    ids, mask, labels = asked()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    inputs |= {"decoder_input_ids": ids} if both else {}
    found = []
    for everywhere in (False, True):
        model = tiny.build(model_type, SEQ2SEQ if both else CAUSAL, seed=0)
        with asked_everywhere() if everywhere else nullcontext():
            named = token_log_probabilities(model.eval(), inputs, temperature=0.7, with_entropy=True)
        (named.log_probabilities * torch.arange(9)).sum().backward()
        gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
        found.append((named.log_probabilities, named.entropies, torch.cat(gradients)))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@torch.no_grad()
def test_sums_and_lengths_are_of_the_named_tokens_only():
    model = tiny.build("finery", CAUSAL, family="decoder").eval()
    ids, mask, labels = asked()
    named = token_log_probabilities(model, {"input_ids": ids, "attention_mask": mask, "labels": labels})
    total, lengths = sums(named)
    assert lengths.tolist() == (labels != -100).sum(1).tolist()
    assert torch.allclose(
        total, torch.stack([row[mask].sum() for row, mask in zip(named.log_probabilities, named.mask, strict=True)])
    )


@torch.no_grad()
def test_the_temperature_divides_the_logits_and_entropy_is_that_of_the_result():
    model = tiny.build("finery", CAUSAL, family="decoder").eval()
    ids, mask, labels = asked()
    named = token_log_probabilities(
        model, {"input_ids": ids, "attention_mask": mask, "labels": labels}, temperature=0.7, with_entropy=True
    )
    softer = (model(input_ids=ids, attention_mask=mask).logits / 0.7).log_softmax(-1)
    where = labels != -100
    expected = softer[where].gather(1, labels[where][:, None])[:, 0]
    assert torch.allclose(named.log_probabilities[where], expected, atol=1e-5)
    assert torch.allclose(named.entropies[where], -(softer.exp() * softer).sum(-1)[where], atol=1e-5)


def test_gradients_are_those_of_the_whole_logits():
    model = tiny.build("finery", CAUSAL, family="decoder").eval()
    ids, mask, labels = asked()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(token_log_probabilities(model, inputs).log_probabilities.square().sum(), weights)
    where = labels != -100
    whole = model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)[where].gather(1, labels[where][:, None])
    for one, other in zip(ours, torch.autograd.grad(whole.square().sum(), weights), strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-4)


def test_an_even_distribution_by_hand():
    logits = torch.zeros(3, 8)
    assert log_probabilities_of(logits, torch.tensor([0, 3, 7])).tolist() == pytest.approx([-2.0794415] * 3)  # -log 8
    assert entropies_of(logits).tolist() == pytest.approx([2.0794415] * 3)


@pytest.mark.parametrize("model_type", ["finery", "gpt2", "bart", "t5"])
def test_without_dropout_training_says_what_evaluation_says(model_type):
    head = SEQ2SEQ if model_type in ("bart", "t5") else CAUSAL
    more = {"family": "decoder"} if model_type == "finery" else {}
    model = tiny.build(model_type, head, dropout=True, **more)
    ids, mask, labels = asked()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if head is SEQ2SEQ:
        inputs["decoder_input_ids"] = ids
    before = {name: value for name, value in model.config.to_dict().items() if "drop" in name}
    with torch.no_grad():
        wanted = token_log_probabilities(model.eval(), inputs).log_probabilities
        assert not torch.equal(token_log_probabilities(model.train(), inputs).log_probabilities, wanted)
        assert torch.allclose(
            token_log_probabilities(without_dropout(model).train(), inputs).log_probabilities, wanted, atol=1e-6
        )
    assert before == {name: value for name, value in model.config.to_dict().items() if "drop" in name}


PROMPTS = [[7, 8, 9], [10], [11, 12, 13, 14, 15]]
COMPLETIONS = [[20, 3], [21, 22, 23, 24], [25]]


def slowly_completion_likelihoods(
    model: Any, prompt: list[int], completion: list[int], start: int | None, temperature: float
) -> list[float]:
    found = []
    with torch.no_grad():
        for at, token in enumerate(completion):
            if start is None:
                logits = model(torch.tensor([[*prompt, *completion[:at]]])).logits[0, -1]
            else:
                logits = model(
                    input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *completion[:at]]])
                ).logits[0, -1]
            found.append(float(torch.log_softmax(logits.double() / temperature, -1)[token]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("model_type", "kind", "more"),
    [
        ("finery", "causal_lm", {"family": "decoder"}),
        ("gpt2", "causal_lm", {}),
        ("t5", "seq2seq_lm", {}),
        ("finery", "seq2seq_lm", {"family": "encoder-decoder"}),
    ],
)
def test_one_pass_says_what_many_say(model_type: str, kind: Any, more: dict[str, Any], temperature: float) -> None:
    model = tiny.build(model_type, Head(kind), **more).eval()
    start = None if kind == "causal_lm" else int(model.config.decoder_start_token_id)
    found = completion_log_probabilities(model, tiny.tokenizer(), PROMPTS, COMPLETIONS, temperature)
    assert [len(each) for each in found] == [len(each) for each in COMPLETIONS]
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        assert found[row] == pytest.approx(
            slowly_completion_likelihoods(model, prompt, completion, start, temperature), abs=2e-5
        )
