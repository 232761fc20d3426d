"""The loss over masked tokens alone is a sum, equal to that over the whole vocabulary at every position.

Losses of labelled examples are sums over items, equal to the arithmetic written out.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipelines.core.interfaces import Head
from pipelines.models import log_probabilities as losses
from pipelines.models.read_places import only_positions, without_wrappers
from pipelines.objectives.losses import Meter, classification_loss, regression_loss, token_loss
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.covering import covering

FAMILIES = ["finery", "bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta-v2"]


def masked_batch() -> dict[str, Any]:
    """Four rows that ask for 3, 1, 0 and 2 tokens."""
    inputs = tiny.batch(rows=4, length=10)
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, column, word in [(0, 1, 7), (0, 2, 9), (0, 8, 30), (1, 4, 11), (3, 5, 12), (3, 6, 40)]:
        labels[row, column] = word
    return inputs | {"labels": labels}


def over_the_whole_vocabulary(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The obvious version: logits of every position, one logarithm a masked token."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    log_probabilities = model(**inputs).logits.log_softmax(-1)
    wanted = (labels != -100).nonzero().tolist()
    return -sum(log_probabilities[row, column, labels[row, column]] for row, column in wanted)


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    ("family", "wrapped"),
    covering(
        product(FAMILIES, (False, True)), name=lambda family, wrapped: f"{family}-{'lora' if wrapped else 'bare'}"
    ),
)
def test_masked_tokens_alone_give_the_loss_and_gradients_of_the_whole_vocabulary(family: str, wrapped: bool) -> None:
    model = tiny.build(family, tiny.MASKED)
    tiny.disturb(model)  # fresh biases and norms are 0 and 1: errors there would not show
    if wrapped:
        model = LoRA(r=2).apply(model)
        tiny.disturb(model)
    batch = masked_batch()
    expected = over_the_whole_vocabulary(model, batch)
    wanted = gradients(model, expected)
    total, outputs = token_loss(model, batch)
    assert outputs.logits.reshape(-1, len(tiny.tokenizer())).shape[0] == 6  # not 4 x 10
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)
    found = gradients(model, total)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_trial_neither_draws_random_numbers_nor_changes_modes() -> None:
    model = tiny.build("bert", tiny.MASKED, hidden_dropout_prob=0.5).train()
    model.cls.eval()
    torch.manual_seed(3)
    first = token_loss(model, masked_batch())[0]
    assert model.finery_narrowing_is_exact
    assert model.bert.training
    assert not model.cls.training
    torch.manual_seed(3)
    assert torch.equal(token_loss(model, masked_batch())[0], first)


def test_a_head_that_cannot_be_narrowed_is_found_out_where_every_position_is_asked_for() -> None:
    """All logits have the shape of the wanted ones then: T5 hands its states to its head itself."""
    model = tiny.build("t5", Head("seq2seq_lm")).eval()
    inputs = tiny.batch(rows=2, length=6) | {"decoder_input_ids": torch.randint(5, 60, (2, 4))}
    assert losses.logits_of(model, inputs, torch.ones(2, 4, dtype=torch.bool))[1].shape[0] == 8
    some = torch.tensor([[True, False, True, False], [False, False, True, True]])
    expected = model(**inputs).logits[some]
    torch.testing.assert_close(losses.logits_of(model, inputs, some)[1], expected)
    assert not model.finery_narrowing_is_exact


def test_nothing_is_left_on_the_model() -> None:
    model = tiny.build("finery", tiny.MASKED)
    whole = tiny.logits(model, tiny.batch()).shape
    token_loss(model, masked_batch())
    with pytest.raises(KeyError), only_positions(model, torch.ones(4, 10, dtype=torch.bool)):
        raise KeyError
    assert tiny.logits(model, tiny.batch()).shape == whole == (4, 10, len(tiny.tokenizer()))


class Neighbourly(nn.Module):
    """A head that looks at the position before, so that it cannot be given some positions only."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden + hidden.roll(1, dims=1))


class Choosy(Neighbourly):
    """A head that wants whole sequences."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[1] != 10:
            raise ValueError("sequences must have 10 positions")
        return self.inner(hidden)


@pytest.mark.parametrize("head", [Neighbourly, Choosy])
def test_a_head_that_needs_the_other_positions_gets_them(head: type[Neighbourly]) -> None:
    model = tiny.build("finery", tiny.MASKED)
    tiny.disturb(model)
    model.lm_head = head(model.lm_head)
    batch = masked_batch()
    total, outputs = token_loss(model, batch)
    assert outputs.logits.shape == (4, 10, len(tiny.tokenizer()))
    torch.testing.assert_close(total, over_the_whole_vocabulary(model, batch))


def test_a_batch_without_masked_tokens_costs_nothing_and_spoils_nothing() -> None:
    model = tiny.build("bert", tiny.MASKED)
    empty = tiny.batch() | {"labels": torch.full((4, 10), -100)}
    for _ in range(2):  # before the trial, and after it
        total, _ = token_loss(model, empty)
        assert total.item() == 0
        assert all(torch.isfinite(gradient).all() for gradient in gradients(model, total).values())
        token_loss(model, masked_batch())


@pytest.mark.long
def test_a_compiled_model_has_the_loss_of_the_plain_one() -> None:
    model = tiny.build("bert", tiny.MASKED)
    compiled = torch.compile(model, backend="eager")
    for moved in range(3):  # other positions, and another number of them, in every step
        batch = masked_batch()
        batch["labels"] = batch["labels"].roll(moved, dims=1)
        batch["labels"][0, :moved] = -100
        torch.testing.assert_close(token_loss(compiled, batch)[0], token_loss(model, batch)[0])


def test_wrappers_are_seen_through() -> None:
    model = tiny.build("bert", tiny.MASKED)
    assert without_wrappers(model) is model
    assert without_wrappers(torch.compile(model, backend="eager")) is model
    assert without_wrappers(LoRA(r=2).apply(model)) is model


def test_losses_are_computed_in_float32_under_autocast() -> None:
    model = tiny.build("bert", tiny.MASKED)
    with torch.autocast("cpu", torch.bfloat16):
        total, outputs = token_loss(model, masked_batch())
    assert outputs.logits.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    kept = masked_batch()["labels"]
    assert total.item() == pytest.approx(
        cross_entropy(outputs.logits[0].float(), kept[kept != -100], reduction="sum").item()
    )


@pytest.mark.parametrize("family", ["finery", "bert", "gpt2"])
def test_classification_is_the_sum_of_cross_entropies(family: str) -> None:
    model = tiny.build(family, tiny.THREE)
    labels = torch.tensor([0, 2, 1, 1])
    total, outputs = classification_loss(model, tiny.batch() | {"labels": labels})
    rows = outputs.logits.detach().tolist()
    expected = sum(
        torch.tensor(row).exp().sum().log().item() - row[label]
        for row, label in zip(rows, labels.tolist(), strict=True)
    )
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert outputs.logits.shape == (4, 3)


@pytest.mark.parametrize("family", ["finery", "bert"])
def test_regression_is_the_sum_of_squared_errors(family: str) -> None:
    model = tiny.build(family, tiny.NUMBER)
    labels = torch.tensor([0.5, 3.0, -1.0, 5.0])
    total, outputs = regression_loss(model, tiny.batch() | {"labels": labels})
    said = outputs.logits.detach().squeeze(1).tolist()
    assert total.item() == pytest.approx(
        sum((a - b) ** 2 for a, b in zip(said, labels.tolist(), strict=True)), rel=1e-5
    )


def test_means_are_over_items_not_over_batches():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0, 2.0, 3.0])})
    meter.add(True, {"margin": torch.tensor([10.0])})
    assert meter.take(True) == {"margin": 4.0}
    assert meter.take(True) == {}


def test_training_and_evaluation_are_kept_apart():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0])})
    meter.add(False, {"margin": torch.tensor([3.0])})
    assert meter.take(False) == {"margin": 3.0}
    assert meter.take(True) == {"margin": 1.0}


def test_processes_are_joined_by_their_items():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0, 1.0, 1.0])})
    assert meter.take(True, lambda told: [told, {"margin": [9.0, 1.0]}, {}]) == {"margin": 3.0}


def test_a_checkpoint_brings_the_sums_back_to_the_bit():
    meter, after = Meter(), Meter()
    meter.add(True, {"margin": torch.rand(7), "other": torch.rand(3)})
    after.restore(json.loads(json.dumps(meter.state())), "cpu")
    assert after.take(True) == meter.take(True)


def test_nothing_to_count_is_not_told():
    meter = Meter()
    meter.add(True, {"margin": torch.zeros(0)})
    assert meter.take(True) == {}


def test_gradients_are_not_kept():
    meter = Meter()
    meter.add(True, {"margin": torch.ones(2, requires_grad=True) * 2})
    assert not meter.totals["train"]["margin"].requires_grad
    assert meter.take(True)["margin"] == pytest.approx(2.0)


def test_only_items_are_counted():
    values = {"margin": torch.tensor([1.0, float("nan"), 3.0]), "reward": torch.tensor([4.0, 5.0, 8.0])}
    items, meter, chosen = torch.tensor([True, False, True]), Meter(), Meter()
    meter.add(True, values, items)
    chosen.add(True, {name: value[items] for name, value in values.items()})
    assert meter.state() == chosen.state()
    assert meter.take(True) == {"margin": 2.0, "reward": 6.0}


def test_what_is_held_is_taken_in_later_and_more_than_once():
    meter = Meter()
    with meter.held() as told:
        meter.add(True, {"margin": torch.tensor([1.0, 3.0])})
    assert meter.state() == {}
    for _ in range(2):
        meter.take_in(told)
    told[0][1]["margin"].zero_()  # as a replay writes to the same memory again
    meter.take_in(told)
    assert meter.state() == {"margin": [8.0, 4.0]}
