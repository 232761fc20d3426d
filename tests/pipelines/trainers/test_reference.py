from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest
import torch

from pipelines.core import costs
from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.log_probabilities import sums, token_log_probabilities
from pipelines.models.read_places import without_wrappers
from pipelines.tasks.preference.pairs import PreferenceCollator
from pipelines.trainers import training_attention
from pipelines.trainers.reference import (
    DisabledAdapter,
    FrozenCopy,
    WithReference,
    peft_model_in,
    precomputed,
    reference_for,
)
from tests import tiny
from tests.covering import covering
from tests.pipelines.trainers.test_dpo_step import ANSWERS, SOURCES, targets_of

ADAPTERS = ["lora", "ia3", "adapter", "prefix", "prompt", "p_tuning"]


def tuned_by(block, model):
    return TUNERS.load(block["name"])(**block).apply(model)


def nudged(model, seed=3):
    """The tuned weights, a little elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))


def asked(model, inputs):
    return sums(token_log_probabilities(model, inputs))[0]


def decoder_inputs():
    ids, rows = torch.tensor([[5, 6, 7, 8, 9, 10], [7, 8, 9, 10, 11, 12]]), 2
    labels = torch.full_like(ids, -100)
    labels[:, 2:-1] = ids[:, 3:]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, "pairs": torch.ones(rows // 2)}


@pytest.mark.parametrize(("kind", "name"), covering(product(("decoder", "bart"), ADAPTERS)))
def test_a_disabled_adapter_is_the_model_before_it_to_the_bit(name, kind):
    model = (
        tiny.build("finery", Head("causal_lm"), family="decoder")
        if kind == "decoder"
        else tiny.build("bart", Head("seq2seq_lm"))
    )
    inputs = decoder_inputs() if kind == "decoder" else PreferenceCollator(0, 2)(targets_of())
    reference = FrozenCopy.of(model)
    policy = tuned_by({"name": name}, model)
    nudged(policy)
    policy.train()
    with reference.model_for(policy) as other:
        expected = asked(other, inputs)
    with DisabledAdapter().model_for(policy) as base:
        found = asked(base, inputs)
        assert not torch.is_grad_enabled()
    assert torch.equal(found, expected)
    with torch.no_grad():
        assert not torch.allclose(asked(policy.eval(), inputs), expected, atol=1e-5)


@pytest.mark.parametrize("name", ADAPTERS)
def test_afterwards_the_policy_is_as_it_was(name):
    policy = tuned_by({"name": name}, tiny.build("finery", Head("causal_lm"), family="decoder"))
    nudged(policy)
    policy.train()
    inputs = decoder_inputs()
    before = asked(policy, inputs)
    learning = {where for where, weight in policy.named_parameters() if weight.requires_grad}
    modes = [module.training for module in policy.modules()]
    with DisabledAdapter().model_for(policy) as base:
        asked(base, inputs)
    assert {where for where, weight in policy.named_parameters() if weight.requires_grad} == learning
    assert [module.training for module in policy.modules()] == modes
    assert torch.equal(asked(policy, inputs), before)
    before.sum().backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in policy.parameters())


@pytest.mark.parametrize(
    ("block", "disabled"),
    [
        ({"name": "full"}, False),
        ({"name": "bitfit"}, False),
        ({"name": "lora"}, True),
        ({"name": "lora", "bias": "all"}, False),
        ({"name": "lora", "init_lora_weights": "pissa"}, False),
        ({"name": "lora", "init_lora_weights": "olora"}, False),
        ({"name": "adapter", "train_layer_norm": True}, True),
        ({"name": "prefix"}, True),
    ],
)
def test_the_reference_is_the_model_before_it_learns(block, disabled):
    """Without a second copy wherever the tuned model still holds the one it came from."""
    model = tiny.build("finery", Head("causal_lm"), family="decoder").eval()
    inputs = decoder_inputs()
    with torch.no_grad():
        expected = asked(model, inputs)
    tuner = TUNERS.load(block["name"])(**block)
    reference = reference_for(model, tuner)
    assert isinstance(reference, DisabledAdapter) == disabled
    policy = tuner.apply(model)
    nudged(policy)
    with reference.model_for(policy) as other:
        assert torch.allclose(asked(other, inputs), expected, atol=1e-5)


def test_a_frozen_copy_does_not_learn():
    model = tiny.build("gpt2", Head("causal_lm"))
    reference = FrozenCopy.of(model)
    assert not any(weight.requires_grad for weight in reference.model.parameters())
    assert all(weight.requires_grad for weight in model.parameters())
    assert reference.model.get_input_embeddings().weight is not model.get_input_embeddings().weight


def test_the_peft_model_is_found_inside_what_wraps_it():
    policy = tuned_by({"name": "lora"}, tiny.build("gpt2", Head("causal_lm")))

    class Compiled(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    assert peft_model_in(policy) is policy
    assert peft_model_in(Compiled(policy)) is policy


class Rows:
    """Examples as `encode_preferences` gives them."""

    def __init__(self, rows):
        self.rows = rows
        self.lengths = np.asarray([len(row["source"]) + max(len(row["chosen"]), len(row["rejected"])) for row in rows])
        self.index = list(range(len(rows)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]

    def select(self, places):
        return Rows([self.rows[place] for place in places])


@pytest.mark.parametrize("size", [1, 3])
def test_stored_numbers_are_those_of_every_answer_alone(context, size):
    model = tiny.build("bart", Head("seq2seq_lm"))
    found = precomputed(context(), model, Rows(targets_of()), PreferenceCollator(0, 2), size, "reference")
    assert found.shape == (len(SOURCES), 2)
    model.eval()
    for row, example in enumerate(targets_of()):
        with torch.no_grad():
            alone = asked(model, PreferenceCollator(0, 2)([example]))
        assert found[row] == pytest.approx(alone.numpy(), abs=1e-4)


def test_stored_numbers_are_read_again_and_not_computed(context):
    place = context()
    model = tiny.build("bart", Head("seq2seq_lm"))
    first = precomputed(place, model, Rows(targets_of()), PreferenceCollator(0, 2), 2, "reference")
    again = precomputed(place, None, Rows(targets_of()), PreferenceCollator(0, 2), 2, "reference")
    assert np.array_equal(first, again)
    assert not list(place.folder.glob("*partial*"))


def test_processes_share_the_work(context):
    from pipelines.core.interfaces import World

    model = tiny.build("bart", Head("seq2seq_lm"))
    whole = precomputed(context("whole"), model, Rows(targets_of()), PreferenceCollator(0, 2), 4, "reference")
    parts = []
    for rank in (0, 1):
        place = context(f"rank-{rank}", world=World(rank, 2), gather=lambda value: parts.append(value) or [value])
        precomputed(place, copy.deepcopy(model), Rows(targets_of()), PreferenceCollator(0, 2), 4, "reference")
    assert np.allclose(parts[0] + parts[1], whole, atol=1e-4)
    assert (parts[0][1::2] == 0).all()
    assert len(ANSWERS) == len(whole)


def test_selected_examples_keep_their_numbers():
    rows = WithReference(Rows(targets_of()), np.arange(8, dtype=np.float32).reshape(4, 2))
    some = rows.select([2, 0])
    assert [some[place]["reference"].tolist() for place in range(2)] == [[4, 5], [0, 1]]
    assert some[0]["source"] == SOURCES[2]


@pytest.mark.parametrize("name", ["lora", "full"])
def test_a_reference_is_asked_with_the_attention_that_its_policy_learns_with(name, monkeypatch):
    monkeypatch.setattr(costs, "SCORES_LEARNT", {"no": 2 * 2 * 6 * 6, "bf16": 1})
    model = tiny.build("llama", Head("causal_lm"))
    reference = reference_for(model, TUNERS.load(name)())
    policy, inputs, seen = tuned_by({"name": name}, model), decoder_inputs(), []
    bodies = [policy, *([reference.model] if isinstance(reference, FrozenCopy) else [])]
    for body in {id(each): each for each in map(without_wrappers, bodies)}.values():
        body.base_model.register_forward_hook(
            lambda module, given, said: seen.append(module.config._attn_implementation)
        )
    shorter = {key: value[:, :5] if value.ndim == 2 else value for key, value in inputs.items()}
    for batch, attention in ((inputs, "sdpa"), (shorter, training_attention.NAME)):
        seen.clear()
        with attention_by_size(policy, training_attention.register()):
            learnt = asked(policy.train(), batch)
            with reference.model_for(policy) as other:
                assert torch.equal(asked(other, batch), learnt)
        with reference.model_for(policy) as other:
            assert torch.equal(asked(other, batch), learnt)
        assert len(seen) >= 3
        assert set(seen) == {attention}
