"""The optimizer learns each weight at its tuner's rate, over its schedule, and leaves what is still frozen as it was."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from transformers import Trainer

from pipelines.core import costs
from pipelines.core.errors import Stopped
from pipelines.core.events import read_events
from pipelines.core.interfaces import Context
from pipelines.core.training_arguments import TrainingArguments
from pipelines.objectives.losses import classification_loss
from pipelines.trainers import trainer as loop
from pipelines.trainers import training_attention
from pipelines.trainers.stage_trainer import StageTrainer, schedule, split_by_rate
from pipelines.trainers.training_args import training_arguments
from pipelines.tuners.full import Full
from tests import tiny
from tests.pipelines.trainers.test_trainer import batch_of, examples

EVERY = 4
"""16 rows in batches of 4 are 4 steps an epoch."""
WORDS = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "num_train_epochs": 3,
}


def train(
    context: Context, tuner: Full, model: Any = None, loss: Any = classification_loss, **arguments: Any
) -> tuple[Any, dict[str, float]]:
    model = tuner.apply(model or tiny.build("bert", tiny.THREE, hidden_dropout_prob=0.1))
    return loop.fit(
        context,
        model,
        tiny.tokenizer(),
        examples("classification"),
        collate=batch_of,
        loss=loss,
        arguments=WORDS | arguments,
        tuner=tuner,
    )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trainers that were made."""
    made: list[Any] = []
    original = loop.FineryTrainer.__init__

    def init(self: Any, **keywords: Any) -> None:
        made.append(self)
        original(self, **keywords)

    monkeypatch.setattr(loop.FineryTrainer, "__init__", init)
    return made


def test_the_groups_are_those_written_by_hand(context: Callable[..., Context], watched: list[Any]) -> None:
    """Rate by layer, decay by kind of weight: none on biases and norms, as transformers does."""
    train(context(), Full(discriminative=2.6), max_steps=1)
    model, groups = watched[0].model, watched[0].optimizer.param_groups
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = {
        names[id(weight)]: (group["initial_lr"], group["weight_decay"])
        for group in groups
        for weight in group["params"]
    }
    layers = {"embeddings": 3, "encoder.layer.0": 2, "encoder.layer.1": 1, "pooler": 0, "classifier": 0}
    expected = {}
    for name, _ in model.named_parameters():
        (below,) = [steps for layer, steps in layers.items() if f".{layer}." in f".{name}"]
        expected[name] = (
            pytest.approx(1e-3 / 2.6**below),
            0.0 if "LayerNorm" in name or name.endswith("bias") else 0.1,
        )
    assert found == expected
    assert sum(len(group["params"]) for group in groups) == len(found)  # none is there twice
    assert groups[0]["initial_lr"] == 1e-3


def test_without_rates_the_groups_are_left_alone() -> None:
    model = tiny.build("bert", tiny.TWO)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = optimizer.param_groups
    split_by_rate(optimizer, model, {})
    assert optimizer.param_groups is before


def test_a_rate_for_a_weight_that_is_not_there_is_a_mistake_of_the_tuner() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="weights that the model does not have: elsewhere"):
        split_by_rate(torch.optim.SGD(model.parameters(), lr=1.0), model, {"weight": 0.5, "elsewhere": 2.0})


@pytest.mark.parametrize(
    "optim",
    ["adamw_torch", "adafactor", *(pytest.param(name, marks=pytest.mark.long) for name in ("sgd", "rmsprop"))],
)
def test_one_step_moves_each_layer_by_its_rate(optim: str, context: Callable[..., Context]) -> None:
    """The first update of a layer is its rate times that of the same layer at the full rate."""
    words = {
        "max_steps": 1,
        "optim": optim,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
    }

    def moved(name: str, tuner: Full) -> dict[str, torch.Tensor]:
        start = tiny.build("bert", tiny.THREE)
        before = {key: weight.detach().double() for key, weight in tiny.build("bert", tiny.THREE).named_parameters()}
        after, _ = train(context(name), tuner, start, **words)
        return {key: weight.detach().double() - before[key] for key, weight in after.named_parameters()}

    plain, slowed = moved("plain", Full()), moved("slowed", Full(discriminative=2.0))
    for layer, rate in (
        ("classifier.weight", 1.0),
        ("layer.1.output.dense.weight", 0.5),
        ("layer.0.output.dense.weight", 0.25),
        ("word_embeddings.weight", 0.125),
    ):
        (key,) = [key for key in plain if key.endswith(layer)]
        assert plain[key].norm() > 0
        torch.testing.assert_close(slowed[key], rate * plain[key], rtol=2e-2, atol=1e-7)


def test_the_schedule_is_the_tuners(context: Callable[..., Context], events: Any) -> None:
    """12 steps: a rise over 1, then a fall over 11."""
    place = context()
    train(place, Full(slanted_triangular=True, discriminative=2.6))
    rates = [event["metrics"]["learning_rate"] for event in events(place) if event["event"] == "metric"]
    height = [0.0] + [1 - step / 11 for step in range(11)]  # before each of the 12 updates
    expected = [1e-3 * (1 + each * 31) / 32 for each in height]
    assert rates == pytest.approx(expected) or rates == pytest.approx([*expected[1:], 1e-3 / 32])


def test_a_tuner_without_a_schedule_leaves_it_to_the_arguments() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)
    assert schedule(optimizer, None, 10) is None
    assert schedule(optimizer, Full(), 10) is None


def snapshots(watched: list[Any]) -> Callable[[Any, Any], Any]:
    """A loss that keeps the weights before every step on the trainer."""

    def loss(model: Any, inputs: Any) -> Any:
        trainer = watched[-1]
        trainer.kept = [
            *getattr(trainer, "kept", []),
            {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()},
        ]
        return classification_loss(model, inputs)

    return loss


@pytest.mark.parametrize(
    "optim",
    [
        "adamw_torch_fused",
        "adafactor",
        "adagrad",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("adamw_torch", "sgd", "rmsprop")),
    ],
)
def test_what_is_frozen_is_not_touched_and_learns_from_its_epoch_on(
    optim: str, context: Callable[..., Context], watched: list[Any]
) -> None:
    """Weight decay and momentum would move weights that have no gradient, if the optimizer did not pass them over."""
    model, metrics = train(context(), Full(gradual_unfreezing=True), loss=snapshots(watched), optim=optim)
    trainer = watched[0]
    layers = ("pooler", "encoder.layer.1", "encoder.layer.0", "embeddings")
    before = [*trainer.kept, {name: weight.detach() for name, weight in model.named_parameters()}]
    assert len(before) == 3 * EVERY + 1
    for epoch in range(3):
        start, end = before[epoch * EVERY], before[(epoch + 1) * EVERY]
        for place, layer in enumerate(layers):
            for name in (name for name in start if f".{layer}." in name):
                if place > epoch:
                    assert torch.equal(start[name], end[name]), name
                elif "key.bias" not in name:  # a bias of keys changes no softmax
                    assert not torch.equal(start[name], end[name]), name
    frozen = {name for name in before[0] if ".embeddings." in name}
    asleep = [weight for name, weight in model.named_parameters() if name in frozen]
    states = [trainer.optimizer.state[weight] for weight in asleep if weight in trainer.optimizer.state]
    assert not any(each["step"] or each["sum"].any() for each in states)  # Adagrad makes its own beforehand, of zeros
    assert metrics["trainable_parameters"] == sum(
        weight.numel() for name, weight in before[0].items() if name not in frozen
    )
    assert metrics["all_parameters"] == sum(weight.numel() for weight in before[0].values())


def test_layers_that_never_wake_are_a_warning(
    context: Callable[..., Context], events: Callable[[Context], list[Any]]
) -> None:
    made = context()
    train(made, Full(gradual_unfreezing=True))
    [warning] = [event["message"] for event in events(made) if event["event"] == "warning"]
    assert "(embeddings) never learn in 3 epochs" in warning


def test_a_layer_that_wakes_begins_with_a_fresh_state(context: Callable[..., Context], watched: list[Any]) -> None:
    train(context(), Full(gradual_unfreezing=True))
    trainer = watched[0]
    steps = {
        name: int(trainer.optimizer.state[weight]["step"])
        for name, weight in trainer.model.named_parameters()
        if weight in trainer.optimizer.state
    }
    assert {steps[name] for name in steps if "pooler" in name} == {12}
    assert {steps[name] for name in steps if "layer.1." in name} == {8}
    assert {steps[name] for name in steps if "layer.0." in name} == {4}


TRICKS = Full(gradual_unfreezing=True, discriminative=2.6, slanted_triangular=True)


@pytest.mark.parametrize("stop_at", [4, 5, *(pytest.param(step, marks=pytest.mark.long) for step in (2, 7, 10))])
def test_a_stop_in_any_epoch_resumes_to_the_bit(stop_at: int, context: Callable[..., Context], events: Any) -> None:
    whole, metrics = train(context("whole"), TRICKS, activation_checkpointing=stop_at == 5)
    first, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(1)
        first.stop.requested = len(calls) == stop_at
        return classification_loss(model, inputs)

    with pytest.raises(Stopped, match=f"at step {stop_at} of 12"):
        train(first, TRICKS, loss=stopping, activation_checkpointing=stop_at == 5)
    again = context("stopped")
    resumed, after = train(again, TRICKS, activation_checkpointing=stop_at == 5)
    expected = dict(whole.named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in resumed.named_parameters())
    assert after["trainable_parameters"] == metrics["trainable_parameters"]
    assert after["train_loss"] == metrics["train_loss"]
    logged = {event["step"]: event["metrics"] for event in events(again) if event["event"] == "metric"}
    assert logged == {
        event["step"]: event["metrics"] for event in events(context("whole")) if event["event"] == "metric"
    }


def test_processes_that_stay_between_epochs_end_with_the_training(context: Callable[..., Context]) -> None:
    train(context(), Full(), dataloader_num_workers=1, dataloader_persistent_workers=True)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("most", [1e-3, 1e3])
def test_gradients_are_cut_as_torch_cuts_them(
    most: float, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for name in ("ours", "plain"):
        if name == "plain":
            monkeypatch.delattr(loop.StageTrainer, "_clip_grad_norm")
        place = context(f"{name}-{most}")
        words = {"max_grad_norm": most, "optim": "sgd", "learning_rate": 0.5, "logging_steps": 1, "max_steps": 3}
        model, _ = loop.fit(
            place,
            tiny.build("bert", tiny.THREE),
            tiny.tokenizer(),
            examples("classification"),
            collate=batch_of,
            loss=classification_loss,
            arguments=words | {"save_strategy": "no", "per_device_train_batch_size": 4},
        )
        norms = [each["metrics"]["grad_norm"] for each in read_events(place.events.path) if each["event"] == "metric"]
        kept.append((model.state_dict(), norms))
    (ours, ours_norms), (plain, plain_norms) = kept
    assert ours_norms == plain_norms
    assert len(ours_norms) == 3
    assert all(1e-3 < norm < 1e3 for norm in ours_norms)
    for name, weight in ours.items():
        assert torch.equal(weight, plain[name]), name


def test_operations_are_those_that_transformers_estimates(context: Callable[..., Context]) -> None:
    model = tiny.build("bert", tiny.THREE)
    args = training_arguments(context(), TrainingArguments())
    plain = Trainer(model, args)
    own = type("Own", (StageTrainer, Trainer), {})
    counting = own.__new__(own)
    counting.begin(context(), None)
    Trainer.__init__(counting, model, args)
    for batch in (tiny.batch(2, 5), tiny.batch(4, 9), {"labels": torch.zeros(2)}, [{"prompt": "TRL's"}]):
        assert counting.floating_point_ops(batch) == plain.floating_point_ops(batch)
    assert counting.floating_point_ops(tiny.batch(2, 5)) > 0


@pytest.mark.parametrize("way", ["large", "small", "dropped", "computed twice"])
def test_large_batches_learn_with_fused_attention_and_the_same_comes_out(
    way: str, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"attention_probs_dropout_prob": 0.1} if way == "dropped" else {}
    words = dict.fromkeys(("hidden_dropout_prob", "classifier_dropout"), 0.0) | words
    given = {"activation_checkpointing": True} if way == "computed twice" else {}
    seen: list[str] = []

    def trained(name: str, enough: int) -> Any:
        monkeypatch.setattr(costs, "SCORES_LEARNT", {"no": enough})
        model = tiny.build("bert", tiny.THREE, **words)
        model.bert.register_forward_hook(lambda body, given, said: seen.append(body.config._attn_implementation))
        return train(context(name), Full(), model, num_train_epochs=1, save_strategy="epoch", **given)[0]

    plain = trained("plain", 10**9)
    others = "eager" if way == "computed twice" else training_attention.NAME
    assert set(seen) == {others}
    seen.clear()
    model = trained("by size", 10**9 if way == "small" else 1)
    assert set(seen) == {"sdpa" if way == "large" else others}
    assert model.config._attn_implementation == "eager"
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, plain.state_dict()[name], rtol=0, atol=1e-5)
    saved = next((context("by size").folder / "checkpoints").glob("checkpoint-*/config.json"))
    assert "attn" not in saved.read_text(encoding="utf-8")
