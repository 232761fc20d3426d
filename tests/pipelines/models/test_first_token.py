"""A last layer that runs for the first token alone: the same losses and gradients, and only where nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.core.registry import TUNERS as TUNERS_TABLE
from pipelines.models.first_token import first_token_only
from pipelines.objectives.losses import classification_loss, regression_loss
from pipelines.tuners.adapter import Adapter
from pipelines.tuners.lora import LoRA
from tests import tiny

MODELS: dict[str, dict[str, Any]] = {
    "finery": {},
    "finery pre": {"norm_position": "pre", "position": "rotary", "norm_type": "rms_norm"},
    "finery sandwich": {"norm_position": "sandwich", "position": "alibi", "layerdrop": 0.0},
    "finery linear": {"attention_pattern": "linear"},
    "finery window": {"attention_pattern": "sliding_window", "sliding_window": 3},
    "bert": {},
    "roberta": {},
    "electra": {},
    "deberta-v2": {},
}
TUNERS = {"full": None, "lora": LoRA(r=2), "adapter": Adapter()}


def built(name: str, head: Any = tiny.THREE, tuner: Any = None, **more: Any) -> Any:
    model = tiny.build(name.split()[0], head, **MODELS.get(name, {}), **more)
    tiny.disturb(model)
    if tuner is not None:
        model = tuner.apply(model)
        tiny.disturb(model)
    return model


def batch() -> dict[str, torch.Tensor]:
    return tiny.batch() | {"labels": torch.tensor([0, 2, 1, 1])}


def places(model: Any, inputs: dict[str, torch.Tensor]) -> int:
    """How many places the last layer hands on."""
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = bare.base_model
    layer = (body.layers if hasattr(body, "layers") else body.encoder.layer)[-1]
    shapes: list[int] = []
    hook = layer.register_forward_hook(
        lambda module, given, output: shapes.append((output[0] if isinstance(output, tuple) else output).shape[1])
    )
    with first_token_only(model, inputs):
        shapes.clear()  # of the trial
        model(**inputs)
    hook.remove()
    return shapes[-1]


@pytest.mark.parametrize("tuner", TUNERS)
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_whole_layer(name, tuner):
    model = built(name, tuner=TUNERS[tuner])
    given = batch()
    assert places(model, {key: value for key, value in given.items() if key != "labels"}) == 1
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    sides = [classification_loss(model, given, first_token=first)[0] for first in (True, False)]
    assert sides[0].item() == pytest.approx(sides[1].item(), rel=1e-5)
    gradients = [torch.autograd.grad(side, learnt, allow_unused=True) for side in sides]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["prefix", "prompt", "p_tuning"])
@pytest.mark.parametrize("family", ["finery", "bert"])
def test_virtual_tokens_stand_before_the_first(family, name):
    model = built(family, tuner=TUNERS_TABLE.load(name)())
    sides = [classification_loss(model, batch(), first_token=first)[0] for first in (True, False)]
    assert sides[0].item() == pytest.approx(sides[1].item(), rel=1e-5)
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = [torch.autograd.grad(side, learnt, allow_unused=True) for side in sides]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_regression_reads_no_more():
    model = built("bert", tiny.NUMBER)
    given = tiny.batch() | {"labels": torch.tensor([0.5, 3.0, -1.0, 5.0])}
    sides = [regression_loss(model, given, first_token=first)[0] for first in (True, False)]
    torch.testing.assert_close(*sides, rtol=1e-5, atol=1e-6)
    assert model.finery_reads_first_token


class Mean(torch.nn.Module):
    """A pooler that reads all tokens."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden.mean(1, keepdim=True))


def test_a_head_that_reads_other_tokens_gets_them():
    model = built("bert")
    model.bert.pooler = Mean(model.bert.pooler)
    inputs = tiny.batch()
    assert places(model, inputs) == inputs["input_ids"].shape[1]
    assert not model.finery_reads_first_token


@pytest.mark.parametrize("name", ["gpt2", "modernbert", "distilbert", "albert"])
def test_models_of_another_build_run_as_they_are(name):
    model = built(name)
    inputs = tiny.batch()
    before = tiny.logits(model.eval(), inputs)
    with torch.no_grad(), first_token_only(model, inputs):
        assert torch.equal(model(**inputs).logits, before)
    assert not getattr(model, "finery_reads_first_token", False)


def test_activations_that_are_computed_again_are_those_of_the_first_pass():
    model = built("bert").train()
    model.gradient_checkpointing_enable()
    loss, _ = classification_loss(model, batch(), first_token=True)
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_trial_leaves_nothing_behind():
    model = built("finery", dropout=True).train()
    given = batch()
    torch.manual_seed(3)
    first = classification_loss(model, given, first_token=True)[0]
    assert model.finery_reads_first_token
    assert model.training
    torch.manual_seed(3)
    assert torch.equal(classification_loss(model, given, first_token=True)[0], first)
    assert all(weight.grad is None for weight in model.parameters())
    assert "_transform" not in vars(model.model.layers[-1])
    inputs = tiny.batch()
    assert model.model(**inputs).last_hidden_state.shape[1] == inputs["input_ids"].shape[1]
