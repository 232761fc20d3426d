"""The loop: gradients that do not depend on how a step is split, the best model kept, no checkpoint that is spoiled.

The order of examples is a permutation that depends on (seed, epoch) alone and keeps similar lengths together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader

from pipelines.core.errors import Diverged, Stopped
from pipelines.core.files import COMPLETE
from pipelines.core.interfaces import Context, Head
from pipelines.data.encoding import collate
from pipelines.models import bfloat16_norms, layer_compilation
from pipelines.objectives.losses import classification_loss, pretraining_loss, regression_loss, token_loss
from pipelines.trainers import trainer
from pipelines.trainers.trainer import EpochSampler, FineryTrainer, order
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.covering import covering

SGD = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no"}
HEADS = {"masked_lm": tiny.MASKED, "classification": tiny.THREE, "regression": tiny.NUMBER}
LOSSES = {"masked_lm": token_loss, "classification": classification_loss, "regression": regression_loss}


def examples(kind: str, count: int = 16) -> list[dict[str, Any]]:
    """Rows of different lengths; for masked LM with very different numbers of masked tokens."""
    generator = np.random.default_rng(1)
    rows = []
    for number in range(count):
        length = 5 + number % 7
        row: dict[str, Any] = {"input_ids": generator.integers(5, 60, length).tolist(), "index": number}
        if kind == "masked_lm":
            asked = 1 + number % 5 if number < count // 2 else 1  # unequal micro-batches, whatever the split
            row["labels"] = [row["input_ids"][at] if at < asked else -100 for at in range(length)]
        else:
            row["labels"] = number % 3 if kind == "classification" else float(generator.normal() * 3)
        rows.append(row)
    return rows


def batch_of(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    if not isinstance(rows[0]["labels"], list):
        return collate(tiny.tokenizer(), rows)
    batch = collate(tiny.tokenizer(), [{key: value for key, value in row.items() if key != "labels"} for row in rows])
    longest = batch["input_ids"].shape[1]
    batch["labels"] = torch.tensor([row["labels"] + [-100] * (longest - len(row["labels"])) for row in rows])
    return batch


def plain_loss(model: Any, kind: str, rows: list[dict[str, Any]]) -> torch.Tensor:
    """The mean over all items of the rows, in one go."""
    batch = batch_of(rows)
    labels = batch.pop("labels")
    said = model(**batch).logits
    if kind == "regression":
        return mse_loss(said[:, 0], labels)
    return cross_entropy(said.reshape(-1, said.shape[-1]), labels.reshape(-1), ignore_index=-100)


def relative_error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    squared = sum((found[name] - wanted[name]).double().square().sum().item() for name in wanted)
    return math.sqrt(squared / sum(gradient.double().square().sum().item() for gradient in wanted.values()))


@pytest.mark.parametrize(("family", "kind"), covering(product(("finery", "bert"), HEADS)))
def test_a_step_has_the_same_gradients_however_it_is_split(
    family: str, kind: str, context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = examples(kind)
    model = tiny.build(family, HEADS[kind])
    expected = plain_loss(model, kind, rows)
    expected.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    seen: list[dict[str, torch.Tensor]] = []

    def look(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        seen.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})

    monkeypatch.setattr(trainer.StageCallback, "on_pre_optimizer_step", look, raising=False)
    for each in (16, 4, 5):  # the last split is not even: 5, 5, 5 and 1 of the 16 rows
        place = context(f"{each}")
        arguments = SGD | {
            "per_device_train_batch_size": each,
            "gradient_accumulation_steps": -(-16 // each),
            "max_steps": 1,
            "learning_rate": 1e-9,
        }
        trainer.fit(
            place,
            tiny.build(family, HEADS[kind]),
            tiny.tokenizer(),
            rows,
            collate=batch_of,
            loss=LOSSES[kind],
            arguments=arguments,
        )
        (logged,) = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
        assert logged == pytest.approx(expected.item(), rel=1e-6)
    assert len(seen) == 3
    for gradients in seen:
        assert relative_error(gradients, wanted) < 1e-6


def test_each_part_of_a_loss_is_divided_by_its_own_items_however_a_step_is_split(
    context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden tokens and pairs: micro-batches hold very different numbers of the one, and some pairs have no label."""
    rows = examples("masked_lm")
    pairs = torch.tensor([number % 2 if number % 3 else -100 for number in range(16)])

    def batch_of_both(given: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return batch_of(given) | {"pair_labels": pairs[[row["index"] for row in given]]}

    model = tiny.build("bert", Head("pretraining"))
    batch = batch_of_both(rows)
    labels, pair_labels = batch.pop("labels"), batch.pop("pair_labels")
    said = model(**batch)
    tokens = cross_entropy(
        said.prediction_logits.reshape(-1, said.prediction_logits.shape[-1]), labels.reshape(-1), ignore_index=-100
    )
    expected = tokens + 3 * cross_entropy(said.seq_relationship_logits, pair_labels, ignore_index=-100)
    expected.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    seen: list[dict[str, torch.Tensor]] = []

    def look(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        seen.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})

    monkeypatch.setattr(trainer.StageCallback, "on_pre_optimizer_step", look, raising=False)
    for each in (16, 5):
        place = context(f"{each}")
        arguments = SGD | {
            "per_device_train_batch_size": each,
            "gradient_accumulation_steps": -(-16 // each),
            "max_steps": 1,
            "learning_rate": 1e-9,
        }
        trainer.fit(
            place,
            tiny.build("bert", Head("pretraining")),
            tiny.tokenizer(),
            rows,
            collate=batch_of_both,
            loss=pretraining_loss,
            label_names={"labels": 1.0, "pair_labels": 3.0},
            arguments=arguments,
        )
        (logged,) = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
        assert logged == pytest.approx(expected.item(), rel=1e-6)
    assert len(seen) == 2
    for gradients in seen:
        assert relative_error(gradients, wanted) < 1e-6


def test_the_order_of_examples_does_not_depend_on_the_split(context: Callable[..., Context]) -> None:
    rows = examples("classification", 21)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    orders = []
    for each in (8, 4, 2):
        order: list[int] = []

        def recorded(batch: list[dict[str, Any]], order: list[int] = order) -> dict[str, torch.Tensor]:
            order.extend(row["index"] for row in batch)
            return batch_of(batch)

        trainer.fit(
            context(f"{each}"),
            tiny.build("bert", tiny.THREE),
            tiny.tokenizer(),
            rows,
            collate=recorded,
            loss=classification_loss,
            lengths=lengths,
            arguments=SGD
            | {"per_device_train_batch_size": each, "gradient_accumulation_steps": 8 // each, "num_train_epochs": 2},
        )
        orders.append(order)
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0][:21]) == sorted(orders[0][21:]) == list(range(21))
    assert orders[0][:21] != orders[0][21:]


def simple(
    context: Context, rows: list[dict[str, Any]], model: Any = None, **keywords: Any
) -> tuple[Any, dict[str, float]]:
    """Classification with BERT and plain settings."""
    arguments = {
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
    }
    given = {"loss": classification_loss, "collate": batch_of} | keywords
    given["arguments"] = arguments | keywords.get("arguments", {})
    return trainer.fit(context, model or tiny.build("bert", tiny.THREE), tiny.tokenizer(), rows, **given)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_events_and_metrics_say_what_happened(context: Callable[..., Context], events: Any) -> None:
    rows, place = examples("classification"), context()
    model, metrics = simple(
        place,
        rows,
        LoRA(r=2).apply(tiny.build("bert", tiny.THREE)),
        arguments={"num_train_epochs": 2, "save_steps": 3, "logging_steps": 2},
    )
    found = events(place)
    logged = [event for event in found if event["event"] == "metric"]
    assert [event["step"] for event in logged] == [2, 4, 6, 8]
    for event in logged:
        assert {"loss", "grad_norm", "learning_rate", "epoch"} <= event["metrics"].keys()
        assert event["stage"] == "stage"
    saved = [event for event in found if event["event"] == "checkpoint"]
    assert [event["step"] for event in saved] == [3, 6, 8]
    assert [path.name for path in sorted((place.folder / "checkpoints").iterdir())] == ["checkpoint-6", "checkpoint-8"]
    assert Path(saved[-1]["path"], COMPLETE).is_file()
    last = [event for event in found if event["event"] == "progress"][-1]
    assert (last["step"], last["total"]) == (8, 8)
    assert [event["id"] for event in found] == list(range(1, len(found) + 1))

    assert metrics["train_steps"] == 8
    assert metrics["epoch"] == 2
    assert metrics["train_samples_per_second"] == pytest.approx(2 * 16 / metrics["train_runtime"])
    assert metrics["train_loss"] == pytest.approx(np.mean([event["metrics"]["loss"] for event in logged]))
    assert metrics["trainable_parameters"] == sum(
        weight.numel() for weight in model.parameters() if weight.requires_grad
    )
    assert (
        metrics["trainable_parameters"]
        < metrics["all_parameters"]
        == sum(weight.numel() for weight in model.parameters())
    )
    assert 10**7 < metrics["peak_memory_bytes"] < 10**11
    json.dumps(metrics)


def test_the_first_nan_ends_the_stage_and_leaves_good_checkpoints(context: Callable[..., Context], events: Any) -> None:
    calls = []

    def spoiled(model: Any, inputs: Any) -> Any:
        calls.append(1)
        total, outputs = classification_loss(model, inputs)
        return (total * math.nan if len(calls) == 4 else total), outputs

    place = context()
    with pytest.raises(Diverged, match=r"the loss is nan at step 4; lower arguments.learning_rate \(now 0.001\)"):
        simple(place, examples("classification"), loss=spoiled, arguments={"max_steps": 8, "save_steps": 1})
    kept = sorted(path.name for path in (place.folder / "checkpoints").iterdir())
    assert kept == ["checkpoint-2", "checkpoint-3"]
    assert [event["step"] for event in events(place) if event["event"] == "metric"] == [1, 2, 3]


@pytest.mark.parametrize("saves", [{"save_steps": 1}, {"save_strategy": "no"}], ids=["checkpoint", "result"])
def test_weights_that_are_no_numbers_are_never_kept(saves: dict[str, Any], context: Callable[..., Context]) -> None:
    place = context()
    arguments = SGD | {"learning_rate": 1e38, "max_steps": 1} | saves  # a finite loss, then an update beyond float32
    with pytest.raises(Diverged, match=r"weights .* after step 1; lower arguments.learning_rate"):
        simple(
            place,
            examples("classification"),
            loss=lambda model, inputs: _times(1e6, classification_loss(model, inputs)),
            arguments=arguments,
        )
    assert list((place.folder / "checkpoints").iterdir()) == []


def _times(factor: float, result: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
    return result[0] * factor, result[1]


def scripted(
    scores: list[float], then: Callable[[int], None] = lambda count: None
) -> Callable[[Any, Any], dict[str, float]]:
    """A score that goes through a list whatever the model says; `then` is told how many were given."""
    given: list[float] = []

    def score(logits: Any, labels: Any) -> dict[str, float]:
        assert logits.shape == (5, 3)
        assert labels.shape == (5,)
        given.append(scores[len(given)])
        then(len(given))
        return {"accuracy": given[-1]}

    return score


SELECTING = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "accuracy",
}


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_the_best_epoch_is_kept_when_later_ones_are_worse(
    tuner: str, context: Callable[..., Context], events: Any
) -> None:
    rows = examples("classification", 21)
    learn, held_out = rows[:8], rows[16:]

    def model() -> Any:
        bare = tiny.build("bert", tiny.THREE)
        return LoRA(r=2).apply(bare) if tuner == "lora" else bare

    place = context("three")
    best, metrics = simple(
        place,
        learn,
        model(),
        selection=held_out,
        score=scripted([0.4, 0.8, 0.6]),
        arguments=SELECTING | {"num_train_epochs": 3},
    )
    assert metrics["train_steps"] == 6
    two, _ = simple(context("two"), learn, model(), arguments={"num_train_epochs": 2, "save_strategy": "no"})
    best_weights = weights(best)
    assert all(torch.equal(best_weights[name], weight) for name, weight in weights(two).items())
    assert not all(torch.equal(best_weights[name], weight) for name, weight in weights(model()).items())  # it learns
    evaluated = [event["metrics"] for event in events(place) if "eval_accuracy" in event.get("metrics", {})]
    assert [metrics["eval_accuracy"] for metrics in evaluated] == [0.4, 0.8, 0.6]


@pytest.mark.parametrize(
    "words", [{"max_steps": 6}, {"max_steps": 6, "eval_strategy": "epoch"}, {"num_train_epochs": 2}]
)
def test_what_was_broken_off_behind_its_last_checkpoint_takes_no_further_step(
    words: dict[str, Any], context: Callable[..., Context], events: Any
) -> None:
    """16 rows in batches of 4: the sixth step is in the middle of the second epoch."""
    rows = examples("classification", 21)
    arguments = words | {
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
    }
    selected: dict[str, Any] = (
        {"selection": rows[16:], "score": scripted([0.5, 0.6, 0.6])} if "eval_strategy" in words else {}
    )
    whole, metrics = simple(context(), rows[:16], arguments=arguments, **selected)
    before = list(events(context()))
    again, after = simple(context(), rows[:16], arguments=arguments, **selected)
    assert after["train_steps"] == metrics["train_steps"] == words.get("max_steps", 8)
    assert after["train_loss"] == metrics["train_loss"]
    assert {name: after[name] for name in after if name.startswith("eval_")} == {
        name: metrics[name] for name in metrics if name.startswith("eval_")
    }
    assert not [event for event in events(context())[len(before) :] if "loss" in event.get("metrics", {})]
    wanted = weights(whole)
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(again).items())


def test_an_evaluation_that_was_broken_off_behind_a_checkpoint_is_made_when_it_goes_on(
    context: Callable[..., Context], events: Any
) -> None:
    rows = examples("classification", 21)
    arguments = {
        "num_train_epochs": 3,
        "eval_strategy": "epoch",
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-2,
    }

    def fit(place: Context, scores: list[float]) -> tuple[Any, Any]:
        return simple(place, rows[:8], arguments=arguments, selection=rows[16:], score=scripted(scores))

    whole, metrics = fit(context("whole"), [0.4, 0.6, 0.5])
    with pytest.raises(IndexError):  # no score is left for the second epoch
        fit(context("broken"), [0.4])
    again, after = fit(context("broken"), [0.6, 0.5])
    shown = [
        [event["metrics"]["eval_accuracy"] for event in events(place) if "eval_accuracy" in event.get("metrics", {})]
        for place in (context("whole"), context("broken"))
    ]
    assert shown == [[0.4, 0.6, 0.5]] * 2
    assert after["train_loss"] == metrics["train_loss"]
    wanted = weights(whole)
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(again).items())


def test_training_ends_when_patience_does_also_over_a_stop(context: Callable[..., Context]) -> None:
    rows = examples("classification", 21)
    learn, held_out, scores = rows[:8], rows[16:], [0.5, 0.9, 0.8, 0.7, 0.95, 0.99]
    words = {"selection": held_out, "early_stopping_patience": 2, "arguments": SELECTING | {"num_train_epochs": 6}}
    whole, metrics = simple(context("whole"), learn, score=scripted(scores), **words)
    assert metrics["epoch"] == 4  # 0.8 and 0.7 are not better than 0.9

    first = context("stopped")

    def stop_after_the_third(count: int) -> None:
        first.stop.requested = count == 3

    with pytest.raises(Stopped, match="stopped at step 7 of 12"):
        simple(first, learn, score=scripted(scores, stop_after_the_third), **words)
    second, again = simple(context("stopped"), learn, score=scripted(scores[3:]), **words)
    assert again["epoch"] == 4  # one of the two was used up before the stop
    wanted = weights(whole)
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(second).items())
    third, once_more = simple(context("stopped"), learn, score=scripted([]), **words)  # nothing is left to learn
    assert (once_more["epoch"], once_more["train_loss"]) == (4, again["train_loss"])
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(third).items())


def test_checkpoints_of_undefined_scores_are_json_and_are_resumed_from(context: Callable[..., Context]) -> None:
    rows = examples("classification", 21)
    words = {"selection": rows[16:], "arguments": SELECTING | {"num_train_epochs": 3}}
    scores = [math.nan, math.nan, 0.5]
    whole, _ = simple(context("whole"), rows[:8], score=scripted(scores), **words)

    place = context("stopped")

    def stop_after_the_second(count: int) -> None:
        place.stop.requested = count == 2

    with pytest.raises(Stopped):
        simple(place, rows[:8], score=scripted(scores, stop_after_the_second), **words)
    files = list(place.folder.glob("checkpoints/checkpoint-*/*.json"))
    assert {"trainer_state.json", "complete.json"} <= {path.name for path in files}
    for path in files:
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    resumed, _ = simple(context("stopped"), rows[:8], score=scripted(scores[2:]), **words)
    wanted = weights(whole)
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(resumed).items())


def test_selection_by_loss_takes_the_smallest(context: Callable[..., Context], events: Any) -> None:
    rows, place = examples("classification", 21), context()
    arguments = SELECTING | {"metric_for_best_model": "loss", "num_train_epochs": 3, "learning_rate": 0.05}
    best, _ = simple(place, rows[:16], selection=rows[16:], arguments=arguments)
    losses = [event["metrics"]["eval_loss"] for event in events(place) if "eval_loss" in event.get("metrics", {})]
    assert len(set(losses)) == 3
    with torch.no_grad():
        assert plain_loss(best.eval(), "classification", rows[16:]).item() == pytest.approx(min(losses), rel=1e-5)


def test_a_resume_takes_the_newest_whole_checkpoint(context: Callable[..., Context], events: Any) -> None:
    rows, words = examples("classification"), {"arguments": {"max_steps": 7, "save_steps": 2, "logging_steps": 3}}
    dropout = lambda: tiny.build("bert", tiny.THREE, hidden_dropout_prob=0.2)  # noqa: E731
    whole, metrics = simple(context("whole"), rows, dropout(), **words)

    place, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(1)
        place.stop.requested = len(calls) == 5
        return classification_loss(model, inputs)

    with pytest.raises(Stopped, match="stage 'stage' stopped at step 5 of 7; its checkpoint is saved"):
        simple(place, rows, dropout(), loss=stopping, **words)
    torn = place.folder / "checkpoints" / "checkpoint-6"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"torn")
    (torn / "trainer_state.json").write_text("{")

    again = context("stopped")
    resumed, after = simple(again, rows, dropout(), **words)
    (said,) = [event for event in events(again) if event.get("what") == "resumed"]
    assert said["step"] == 5
    wanted = weights(whole)
    assert all(torch.equal(wanted[name], weight) for name, weight in weights(resumed).items())
    assert after["train_loss"] == metrics["train_loss"]
    losses = {event["step"]: event["metrics"]["loss"] for event in events(again) if event["event"] == "metric"}
    assert losses == {
        event["step"]: event["metrics"]["loss"] for event in events(context("whole")) if event["event"] == "metric"
    }


@pytest.mark.parametrize(
    ("family", "checkpointed"), [("finery", True), ("bert", False), pytest.param("bert", True, marks=pytest.mark.long)]
)
def test_bf16_and_activation_checkpointing_learn(
    family: str, checkpointed: bool, context: Callable[..., Context], events: Any
) -> None:
    place = context(precision="bf16")
    model = LoRA(r=4).apply(tiny.build(family, tiny.THREE))
    simple(
        place,
        examples("classification"),
        model,
        arguments={
            "num_train_epochs": 4,
            "learning_rate": 2e-2,
            "activation_checkpointing": checkpointed,
            "save_strategy": "no",
        },
    )
    losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])


def test_draws_mark_examples_when_asked_to() -> None:
    rows = [{"input_ids": [1]}, {"input_ids": [2]}, {"input_ids": [3]}]
    assert trainer.Draws(rows, marked=True)[7] == {"input_ids": [2], "draw": 7}
    assert trainer.Draws(rows)[7] == {"input_ids": [2]}
    assert len(trainer.Draws(rows)) == 3
    assert rows[1] == {"input_ids": [2]}


@given(st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(1, 400), st.integers(1, 64), st.booleans())
def test_every_epoch_is_a_permutation_and_is_drawn_again_equal(
    seed: int, epoch: int, examples: int, batch: int, with_lengths: bool
) -> None:
    lengths = np.random.default_rng(seed).integers(1, 99, examples) if with_lengths else None
    first = order(seed, epoch, examples, batch, lengths)
    assert sorted(first.tolist()) == list(range(examples))
    assert first.tolist() == order(seed, epoch, examples, batch, lengths).tolist()


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(order(seed, epoch, 100, 8).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_batches_hold_similar_lengths_and_come_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 128, 6400)
    chosen = lengths[order(1, 0, 6400, 32, lengths)].reshape(-1, 32)
    padded = chosen.max(axis=1).sum() * 32
    assert lengths.sum() / padded > 0.95
    random = lengths[order(1, 0, 6400, 32)].reshape(-1, 32)
    assert lengths.sum() / (random.max(axis=1).sum() * 32) < 0.6
    means = chosen.mean(axis=1)
    assert np.corrcoef(means[:-1], means[1:])[0, 1] < 0.3


def test_a_draw_names_one_example_in_one_epoch() -> None:
    sampler = EpochSampler(10, 4, seed=3)
    first = list(sampler)
    sampler.epoch = 2
    third = list(sampler)
    assert sorted(first) == list(range(10))
    assert sorted(third) == list(range(20, 30))
    assert len(sampler) == 10


def test_the_order_of_many_examples_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "AT_ONCE", 7)
    short = EpochSampler(45, 8, seed=3)
    assert list(short) == order(3, 0, 45, 8).tolist()
    monkeypatch.setattr(trainer, "MOST_HELD", 40)
    monkeypatch.setattr(trainer, "order", None)
    sampler = EpochSampler(45, 8, seed=3, shared=8)
    first = list(sampler)
    sampler.epoch = 1
    second = [draw - 45 for draw in list(sampler)[:45]]
    assert sorted(first[:45]) == sorted(second) == list(range(45))
    assert first[45:] == [trainer.PADDING] * 3
    assert first[:45] != second
    in_order = EpochSampler(45, 8, seed=3, in_order=True)
    in_order.epoch = 2
    assert list(in_order) == list(range(90, 135))


def test_processes_that_share_an_epoch_get_equally_many_examples_the_last_ones_marked() -> None:
    sampler = EpochSampler(45, 8, seed=3, shared=8)
    sampler.epoch = 1
    draws = list(sampler)
    assert len(sampler) == len(draws) == 48
    assert sorted(draws[:45]) == list(range(45, 90))
    assert draws[45:] == [-1, -1, -1]
    assert list(EpochSampler(45, 8, seed=3, shared=8))[:45] == list(EpochSampler(45, 8, seed=3))


def test_a_stage_compiles_layers_for_the_time_of_its_training(
    context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"input_ids": [5 + number, 6, 7], "labels": number % 3} for number in range(8)]
    words = {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no"}
    losses, compiled, plain = [], [], layer_compilation.compile_layers

    def compile_layers(model: Any, **settings: Any) -> int:
        compiled.append((plain(model, **settings), settings))
        return compiled[-1][0]

    monkeypatch.setattr(layer_compilation, "compile_layers", compile_layers)
    for more in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        place = context(f"{len(losses)}")
        model = tiny.build("bert", tiny.THREE)
        trainer.fit(
            place,
            model,
            tiny.tokenizer(),
            rows,
            collate=lambda batch: collate(tiny.tokenizer(), batch),
            loss=classification_loss,
            arguments=words | more,
        )
        losses.append([event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"])
        assert not any(layer_compilation.is_compiled(each) for each in model.modules())
    assert compiled == [(2, {"backend": "eager"})]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (1, [[[0, 1, 2], [3]]]),
        (2, [[[0, 1, 2]], [[3, -1, -1]]]),
        (4, [[[0, 1, 2]], [[3, -1, -1]], [[-1, -1, -1]], [[-1, -1, -1]]]),
    ],
)
def test_no_row_of_an_evaluation_is_given_to_two_processes(processes: int, expected: list[list[list[int]]]) -> None:
    args = SimpleNamespace(eval_batch_size=3, world_size=processes, seed=1)
    rows = list(range(4))
    given = []
    for process in range(processes):
        sampler = FineryTrainer._get_eval_sampler(SimpleNamespace(args=args), rows)  # type: ignore[arg-type]
        loader = DataLoader(rows, batch_size=3, sampler=sampler)  # type: ignore[arg-type]
        shared = prepare_data_loader(loader, num_processes=processes, process_index=process, put_on_device=False)
        given.append([list(batch) for batch in shared.batch_sampler])
    assert given == expected


@pytest.mark.parametrize(("training", "expected"), [(True, 6.0 / 8 * 2), (False, 6.0 / 3)])
def test_a_process_divides_by_the_rows_of_all_while_it_learns_and_by_its_own_while_it_evaluates(
    training: bool, expected: float
) -> None:
    live: Any = SimpleNamespace(
        loss=lambda model, inputs: (torch.tensor(6.0), None),
        label_weights={"labels": 1.0},
        args=SimpleNamespace(world_size=2),
        tuner=None,
    )
    live._items = partial(FineryTrainer._items, live)
    labels = torch.tensor([0, 1, 1, -100])
    model = torch.nn.Linear(1, 1).train(training)
    value = FineryTrainer.compute_loss(live, model, {"labels": labels}, num_items_in_batch=torch.tensor([8]))
    assert float(value) == expected


@pytest.mark.parametrize(
    ("precision", "beside_reference", "kind"),
    [("bf16", False, torch.bfloat16), ("bf16", True, torch.float32), ("no", False, torch.float32)],
)
def test_norms_hand_out_bfloat16_where_products_do_and_no_reference_is_beside(
    precision: str,
    beside_reference: bool,
    kind: torch.dtype,
    context: Callable[..., Context],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bfloat16_norms, "multiplies_bfloat16", lambda: True)
    model = tiny.build("bert", tiny.THREE)
    said: set[torch.dtype] = set()
    for norm in (each for each in model.modules() if isinstance(each, torch.nn.LayerNorm)):
        norm.register_forward_hook(lambda module, given, output: said.add(output.dtype))
    trainer.fit(
        context(precision=precision),
        model,
        tiny.tokenizer(),
        examples("classification"),
        collate=batch_of,
        loss=classification_loss,
        arguments=SGD | {"max_steps": 1},
        beside_reference=beside_reference,
    )
    assert kind in said
    assert kind is torch.bfloat16 or said == {kind}
    said.clear()
    with torch.autocast("cpu", torch.bfloat16):
        model.train()(**tiny.batch(2, 5))
    assert said == {torch.float32}
