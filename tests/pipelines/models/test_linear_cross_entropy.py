"""Vocabulary losses from what the output matrix reads: equal to those of all logits, with chunks of a few rows."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from pipelines.core.interfaces import Head
from pipelines.models import linear_cross_entropy, log_probabilities
from pipelines.models.linear_cross_entropy import log_probabilities_and_entropies, summed_cross_entropy
from pipelines.models.log_probabilities import token_log_probabilities
from pipelines.objectives.losses import token_loss
from pipelines.trainers.actor_critic import ActorCritic
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.covering import by_turns

TOKENS, VOCABULARY, DIM = 23, 37, 8
CAUSAL, SEQ2SEQ = Head("causal_lm"), Head("seq2seq_lm")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Seven rows at a time, two of them through a softmax together: the last of both are not full."""
    monkeypatch.setattr(linear_cross_entropy, "tokens_at_once", lambda vocab, on_cpu: 7)
    monkeypatch.setattr(linear_cross_entropy, "SCORES_OF_A_SOFTMAX", 2 * VOCABULARY)
    monkeypatch.setattr(log_probabilities, "LOGITS_KEPT", 0)


@pytest.fixture(params=[False, True], ids=["as it is", "filled up"])
def filled(request, monkeypatch):
    """Whether words of zeros fill the vocabulary up, as on a GPU."""
    monkeypatch.setattr(linear_cross_entropy, "fills_up", lambda weight: request.param)


def drawn(bias: bool, stored: torch.dtype) -> tuple[list[Any], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((TOKENS, DIM), (VOCABULARY, DIM), (VOCABULARY,))[: 2 + bias]
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64).to(stored) for shape in shapes]
    labels = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    return [each.requires_grad_() for each in weights], labels


def logits_of(weights: list[Any], dtype: torch.dtype) -> torch.Tensor:
    return functional.linear(*(each.to(dtype) for each in weights)).to(torch.promote_types(dtype, torch.float32))


PRECISIONS = [
    (torch.float64, torch.float64, 1e-12),
    (torch.float32, torch.float32, 1e-5),
    (torch.float32, torch.bfloat16, 2e-2),  # fp32 weights under autocast
    (torch.bfloat16, torch.bfloat16, 2e-2),
]


def assert_equal_gradients(ours: torch.Tensor, plain: torch.Tensor, weights: list[Any], tolerance: float) -> None:
    pairs = zip(torch.autograd.grad(ours, weights), torch.autograd.grad(plain, weights), strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("stored", "dtype", "tolerance"), PRECISIONS)
@pytest.mark.usefixtures("filled")
def test_the_sum_and_its_gradients_are_those_of_all_logits(stored, dtype, tolerance, bias, smoothing):
    weights, labels = drawn(bias, stored)
    best = logits_of(weights, dtype).argmax(-1)
    labels[::2] = best[::2]
    right = torch.zeros(len(labels), dtype=torch.bool)
    of = weights[0], weights[1], weights[2] if bias else None
    ours = summed_cross_entropy(*of, labels, dtype, smoothing, right) * 0.3
    assert right.tolist() == (best == labels).tolist()
    assert not right.all()
    plain = 0.3 * functional.cross_entropy(
        logits_of(weights, dtype), labels, reduction="sum", label_smoothing=smoothing
    )
    assert ours.item() == pytest.approx(plain.item(), rel=min(tolerance, 1e-6))
    assert_equal_gradients(ours, plain, weights, tolerance)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("stored", "dtype", "tolerance"), PRECISIONS)
@pytest.mark.usefixtures("filled")
def test_log_probabilities_and_entropies_are_those_of_all_logits(stored, dtype, tolerance, bias):
    weights, labels = drawn(bias, stored)
    named, entropies = log_probabilities_and_entropies(*weights[:2], weights[2] if bias else None, labels, dtype, 1.4)
    chances = (logits_of(weights, dtype) * 1.4).log_softmax(-1)
    plain, spread = chances.gather(1, labels[:, None])[:, 0], -(chances.exp() * chances).sum(-1)
    torch.testing.assert_close(named, plain, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropies, spread, rtol=1e-6, atol=1e-6)
    upstream = torch.linspace(-1, 2, TOKENS, dtype=named.dtype)
    for ours, theirs in ((named, plain), (named + entropies, plain + spread)):
        again = log_probabilities_and_entropies(*weights[:2], weights[2] if bias else None, labels, dtype, 1.4)
        ours = again[0] if ours is named else again[0] + again[1]
        theirs_loss = (theirs * upstream).sum()
        pairs = zip(
            torch.autograd.grad((ours * upstream).sum(), weights),
            torch.autograd.grad(theirs_loss, weights, retain_graph=True),
            strict=True,
        )
        for one, other in pairs:
            assert (one - other).abs().max() <= tolerance * other.abs().max()


def test_a_second_way_back_through_a_sum_is_refused():
    weights, labels = drawn(False, torch.float32)
    loss = summed_cross_entropy(*weights, None, labels, torch.float32)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute it again"):
        loss.backward()


MODELS = {
    "finery": (CAUSAL, {"family": "decoder", "scale_logits": True}),
    "finery untied": (CAUSAL, {"family": "decoder", "tie_word_embeddings": False, "lm_head_bias": True}),
    "finery encoder": (tiny.MASKED, {}),
    "finery seq2seq": (SEQ2SEQ, {"family": "encoder-decoder"}),
    "gpt2": (CAUSAL, {}),
    "llama": (CAUSAL, {}),
    "bert": (tiny.MASKED, {}),
    "modernbert": (tiny.MASKED, {}),
    "t5": (SEQ2SEQ, {}),
    "bart": (SEQ2SEQ, {}),
}


def built(name: str) -> Any:
    head, more = MODELS[name]
    model = tiny.build(name.split()[0], head, **more)
    tiny.disturb(model)
    return model


def asked(model: Any) -> dict[str, torch.Tensor]:
    batch = tiny.batch(rows=4, length=10)
    labels = tiny.batch(rows=4, length=10, seed=1)["input_ids"]
    labels[:, :3] = -100
    labels[2, 5:] = -100
    read = {"decoder_input_ids": batch["input_ids"].flip(0)} if model.config.is_encoder_decoder else {}
    return batch | read | {"labels": labels}


def plain_logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return model(**inputs).logits[batch["labels"] != -100].float()


def labels_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["labels"][batch["labels"] != -100]


@pytest.mark.parametrize(
    ("name", "lora"), by_turns(MODELS, (False, True), lambda name, lora: f"{name}-{'lora' if lora else 'all'}")
)
def test_the_loss_and_the_gradients_of_a_model_are_those_of_its_logits(name, lora):
    model = built(name)
    if lora:  # the output matrix stays as it is
        model = LoRA(r=2).apply(model)
        tiny.disturb(model)
    batch = asked(model)
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    ours, outputs = token_loss(model, batch, 0.1)
    assert outputs.logits.shape[-1] == 0  # else this compares the plain path with itself
    plain = functional.cross_entropy(plain_logits(model, batch), labels_of(batch), reduction="sum", label_smoothing=0.1)
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    pairs = [torch.autograd.grad(each, learnt, allow_unused=True) for each in (ours, plain)]
    for one, other in zip(*pairs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)
    assert model(**{name: value for name, value in batch.items() if name != "labels"}).logits.shape[-1] > 0


@pytest.mark.parametrize("name", ["finery", "t5"])
def test_under_autocast_products_are_bf16_and_losses_are_not(name):
    model = built(name)
    batch = asked(model)
    with torch.autocast("cpu", torch.bfloat16):
        ours, outputs = token_loss(model, batch)
        plain = functional.cross_entropy(plain_logits(model, batch), labels_of(batch), reduction="sum")
    assert outputs.logits.shape[-1] == 0
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    learnt = list(model.parameters())
    ours, plain = (
        torch.cat([each.flatten() for each in torch.autograd.grad(loss, learnt, allow_unused=True) if each is not None])
        for loss in (ours, plain)
    )
    assert (ours - plain).norm() <= 1e-2 * plain.norm()


@pytest.mark.parametrize("learns_entropy", [False, True])
def test_a_policy_names_what_it_named_from_all_logits(learns_entropy, monkeypatch):
    policy = ActorCritic(built("finery"))
    batch = asked(policy.policy)

    def total(kept: int) -> tuple[torch.Tensor, ...]:
        monkeypatch.setattr(log_probabilities, "LOGITS_KEPT", kept)
        said = policy(batch, temperature=0.7, learns_entropy=learns_entropy)
        assert said.entropies.requires_grad == learns_entropy
        loss = said.log_probabilities.square().sum() + said.entropies.sum() + said.values.sum()
        return said.log_probabilities, said.entropies, *torch.autograd.grad(loss, list(policy.parameters()))

    for ours, plain in zip(total(0), total(2**23), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=2e-4)


def test_log_probabilities_need_no_gradient():
    model = built("gpt2")
    batch = asked(model)
    with torch.no_grad():
        named = token_log_probabilities(model, batch, with_entropy=True)
        chances = plain_logits(model, batch).log_softmax(-1)
    where = batch["labels"] != -100
    torch.testing.assert_close(
        named.log_probabilities[where], chances.gather(1, labels_of(batch)[:, None])[:, 0], rtol=1e-5, atol=1e-5
    )
    assert not named.log_probabilities[~where].any()
    torch.testing.assert_close(named.entropies[where], -(chances.exp() * chances).sum(-1), rtol=1e-5, atol=1e-5)


def scaled() -> Any:
    model = built("gpt2")
    inner = type(model).forward

    def forward(self: Any, **inputs: Any) -> Any:
        said = inner(self, **inputs)
        said.logits = 30 * torch.tanh(said.logits / 30)  # as Gemma 2 bounds them: nearly nothing where they are small
        return said

    type(model).forward, model.put_back = forward, lambda: setattr(type(model), "forward", inner)
    return model


def test_logits_that_something_is_done_to_are_all_made():
    model = scaled()
    try:
        total, outputs = token_loss(model, asked(model))
    finally:
        model.put_back()
    assert outputs.logits.shape[-1] == len(tiny.tokenizer())
    assert not model.finery_output_is_last
    assert torch.isfinite(total)


def test_an_adapted_output_matrix_is_no_ordinary_one():
    model = get_peft_model(built("finery untied"), LoraConfig(r=2, target_modules=["lm_head"]))
    tiny.disturb(model)
    batch = asked(model)
    total, outputs = token_loss(model, batch)
    assert outputs.logits.shape[-1] == len(tiny.tokenizer())
    plain = functional.cross_entropy(plain_logits(model, batch), labels_of(batch), reduction="sum")
    assert total.item() == pytest.approx(plain.item(), rel=1e-5)


SHARED = """
import os, sys, torch
from tests import tiny
from tests.pipelines.models.test_linear_cross_entropy import asked, built, log_probabilities, token_loss
log_probabilities.LOGITS_KEPT = 0
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
for unused in (False, True):
    alone, model = built("finery untied"), built("finery untied")
    batch = asked(model)
    token_loss(alone, batch)[0].backward()
    shared = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
    for _ in range(2):  # a gradient that is still waited for is told in the next step
        model.zero_grad()
        total, outputs = token_loss(shared, batch)
        assert outputs.logits.shape[-1] == 0
        total.backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
print("equal", flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_processes_that_share_gradients_wait_for_the_output_matrix(tmp_path):
    done = subprocess.run([sys.executable, "-c", SHARED, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "equal", done.stderr


def test_all_logits_never_exist_together(monkeypatch):
    """Allocations of a loss and its way back, against float32 logits of all tokens."""
    monkeypatch.setattr(linear_cross_entropy, "tokens_at_once", lambda vocab, on_cpu: 16)
    monkeypatch.setattr(linear_cross_entropy, "SCORES_OF_A_SOFTMAX", 2**14)
    states, weight = torch.randn(1024, 8, requires_grad=True), torch.randn(4096, 8, requires_grad=True)
    labels = torch.randint(0, 4096, (1024,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        summed_cross_entropy(states, weight, None, labels, torch.float32).backward()
    held = most = 0
    events = [each for each in record.profiler.kineto_results.events() if each.name() == "[memory]"]
    for each in sorted(events, key=lambda event: event.start_ns()):
        held += each.nbytes()
        most = max(most, held)
    assert most < 1024 * 4096 * 4 / 10


@pytest.mark.usefixtures("filled")
def test_logits_in_chunks_are_those_of_the_model():
    model = built("bert")
    batch = asked(model)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.inference_mode():
        _, said = log_probabilities.distributions_of(model, inputs, batch["labels"] != -100)
        assert said.weight is not None
        parts = [(part, logits.clone()) for part, logits in said.in_chunks()]
        plain = plain_logits(model, batch)
    assert len(parts) > 1
    assert [place for part, _ in parts for place in range(part.start, part.stop)] == list(range(len(plain)))
    torch.testing.assert_close(torch.cat([logits for _, logits in parts]), plain, rtol=1e-5, atol=1e-5)
