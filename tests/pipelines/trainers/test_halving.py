"""`per_device_train_batch_size: auto`: the most that fits, and halves where memory runs out, with the same updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import RecipeError, Stopped
from pipelines.core.interfaces import Context
from pipelines.core.load import loads
from pipelines.core.training_arguments import TrainingArguments
from pipelines.trainers.halving import Halving, parts_of, rows_of
from tests.pipelines.trainers.test_trainer import classification_loss, examples, simple, weights

AUTO = {"per_device_train_batch_size": "auto", "global_batch_size": 8, "max_steps": 4, "save_strategy": "no"}
SAVED = {"save_strategy": "steps", "save_steps": 1}
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"


def short_of_memory(calls: list[int], fails_at: set[int], most: int | None = None) -> Any:
    """The loss of a machine that has no memory at these calls, or never for more than `most` examples."""

    def loss(model: Any, inputs: Any) -> Any:
        calls.append(len(inputs["labels"]))
        sums, outputs = classification_loss(model, inputs)
        if len(calls) in fails_at or (most is not None and calls[-1] > most):
            sums.backward()  # gradients are half written by then
            raise RuntimeError(NO_MEMORY)
        return sums, outputs

    return loss


def same(one: Any, other: Any) -> bool:
    expected = weights(other)
    return all(torch.allclose(weight, expected[name], rtol=0, atol=1e-6) for name, weight in weights(one).items())


@pytest.mark.parametrize(("fits", "at_once"), [(8, [8]), (7, [4, 4]), (2, [2, 2, 2, 2]), (0, [1] * 8)])
def test_the_most_that_fits_is_computed_at_once(fits: int, at_once: list[int], context: Callable[..., Context]):
    calls: list[int] = []
    place = context(fits=lambda each: each <= fits)
    simple(place, examples("classification"), loss=short_of_memory(calls, set()), arguments=AUTO)
    assert calls == at_once * 4


@pytest.mark.parametrize(
    ("fails_at", "most", "calls_of_step"),
    [({1}, None, [8, 4, 4]), (set(), 2, [8, 4, 2, 2, 2, 2]), ({3}, None, [8, 8, 8, 4, 4])],
)
def test_a_batch_without_memory_is_halved_and_the_updates_stay(
    fails_at: set[int], most: int | None, calls_of_step: list[int], context: Callable[..., Context], events: Any
):
    whole, metrics = simple(context("whole"), examples("classification"), arguments=AUTO)
    calls: list[int] = []
    place = context("short")
    halved, after = simple(
        place, examples("classification"), loss=short_of_memory(calls, fails_at, most), arguments=AUTO
    )
    assert calls[: len(calls_of_step)] == calls_of_step
    assert max(calls[len(calls_of_step) :]) == calls_of_step[-1]  # it stays so
    assert same(halved, whole)
    assert after["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-6)
    warnings = [event["message"] for event in events(place) if event["event"] == "warning"]
    assert f"from now on {calls_of_step[-1]} examples are computed at once" in warnings[-1]


def test_parts_are_counted_as_they_are_computed():
    halving, seen = Halving(), []
    halving.parts = 4
    batch = {"labels": torch.zeros(5)}
    halving.loss(batch, lambda part: seen.append(len(part["labels"])) or torch.zeros(()), lambda: None, lambda _: None)
    assert seen == [2, 2, 1]
    assert halving.computed == 3


def test_earlier_batches_of_the_step_are_computed_again(context: Callable[..., Context]):
    whole, _ = simple(context("whole"), examples("classification"), arguments=AUTO)
    calls: list[int] = []
    place = context("short", fits=lambda each: each <= 4)
    halved, _ = simple(place, examples("classification"), loss=short_of_memory(calls, {2}), arguments=AUTO)
    assert calls[:6] == [4, 4, 2, 2, 2, 2]
    assert same(halved, whole)


def test_a_resume_keeps_what_was_halved(context: Callable[..., Context]):
    place, calls = context(), []
    loss = short_of_memory(calls, {1})

    def stopping(model: Any, inputs: Any) -> Any:
        place.stop.requested = len(calls) >= 5
        return loss(model, inputs)

    with pytest.raises(Stopped):
        simple(place, examples("classification"), loss=stopping, arguments=AUTO | SAVED)
    again: list[int] = []
    simple(context(), examples("classification"), loss=short_of_memory(again, set()), arguments=AUTO | SAVED)
    assert set(again) == {4}


def test_one_example_without_memory_is_an_error(context: Callable[..., Context]):
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        simple(context(), examples("classification"), loss=short_of_memory([], set(), 0), arguments=AUTO)


def test_another_error_is_not_taken_for_memory(context: Callable[..., Context]):
    def broken(model: Any, inputs: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        simple(context(), examples("classification"), loss=broken, arguments=AUTO)


@given(st.integers(1, 20), st.integers(1, 9))
def test_parts_hold_every_example_once_in_order(rows: int, parts: int):
    batch = {"input_ids": torch.arange(rows * 2).reshape(rows, 2), "masks": {"full": torch.arange(rows)}, "scale": 3}
    made = parts_of(batch, parts)
    assert len(made) <= parts
    assert torch.equal(torch.cat([part["input_ids"] for part in made]), batch["input_ids"])
    assert torch.equal(torch.cat([part["masks"]["full"] for part in made]), batch["masks"]["full"])
    assert {part["scale"] for part in made} == {3}
    assert max(map(rows_of, made)) == -(-rows // parts)


def test_the_effective_batch_is_said_by_the_recipe():
    arguments = TrainingArguments.model_validate({"per_device_train_batch_size": "auto", "global_batch_size": 24})
    assert arguments.batch_sizes(2, lambda each: each <= 5) == (4, 3)
    assert arguments.batch_sizes(1) == (24, 1)


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        (
            "{stage: supervised, task: glue/rte, arguments: {per_device_train_batch_size: auto}}",
            "needs global_batch_size",
        ),
        ("{stage: supervised, task: glue/rte, arguments: {per_device_train_batch_size: most}}", "must be"),
        (
            "{stage: reward, task: alpaca_eval_preferences, "
            "arguments: {per_device_train_batch_size: auto, global_batch_size: 8}}",
            "is auto, which is for pretrain and supervised stages; write a number",
        ),
        (
            "{stage: multi_task, from: model, tasks: [{task: glue/rte}, {task: glue/mrpc}], "
            "arguments: {per_device_train_batch_size: auto, global_batch_size: 8}}",
            "is auto, which is for pretrain and supervised stages; write a number",
        ),
    ],
)
def test_where_it_cannot_be_a_sentence_says_why(stage: str, sentence: str):
    with pytest.raises(RecipeError, match=sentence):
        loads(f"name: one\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n  - {stage}\n")
