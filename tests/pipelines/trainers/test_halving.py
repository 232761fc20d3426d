"""`per_device_train_batch_size: auto`: the most that fits, and halves where memory runs out, with the same updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core import costs
from pipelines.core.errors import RecipeError, Stopped
from pipelines.core.interfaces import Context
from pipelines.core.load import loads
from pipelines.core.training_arguments import TrainingArguments
from pipelines.trainers.halving import LENGTHS_APART, Halving, parts_by_size, parts_of, rows_of, trimmed
from tests import tiny
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


LARGE = {"per_device_train_batch_size": 8, "max_steps": 4, "save_strategy": "no"}


def test_what_is_large_for_a_processor_is_computed_in_parts(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    rows = examples("classification")
    whole, metrics = simple(context("whole"), rows, arguments=LARGE)
    seen: list[tuple[int, int]] = []

    def loss(model: Any, inputs: Any) -> Any:
        seen.append(tuple(inputs["input_ids"].shape))
        return classification_loss(model, inputs)

    kept = 3 * max(len(row["input_ids"]) for row in rows) * 48 * 4  # bytes of three of them in the widest layer
    monkeypatch.setattr(costs, "TENSOR_KEPT", kept)
    divided, after = simple(context("divided"), rows, loss=loss, arguments=LARGE)
    assert sum(size for size, _ in seen) == 4 * 8
    assert max(size for size, _ in seen) < 8
    assert all(size * length * 48 * 4 <= kept for size, length in seen)
    assert same(divided, whole)
    assert after["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-6)
    short = short_of_memory([], {2})
    with pytest.raises(RuntimeError, match="can't allocate memory"):  # which only `auto` recovers from
        simple(context("short"), rows, loss=short, arguments=LARGE)
    assert same(simple(context("auto"), rows, loss=short_of_memory([], {2}), arguments=AUTO)[0], whole)


@given(st.integers(1, 700), st.integers(1, 4000), st.integers(0, 16), st.booleans())
def test_no_tensor_is_larger_than_what_is_kept(length: int, widest: int, heads: int, mixed: bool):
    rows = costs.rows_on_cpu(length, widest, heads, mixed)
    sequence = length * max(widest, heads * length) * (2 if mixed else 4)
    assert rows == 1 or rows * sequence <= costs.TENSOR_KEPT
    assert (rows + 1) * sequence > costs.TENSOR_KEPT


def test_a_model_without_attention_is_computed_whole():
    batch = {"input_ids": torch.zeros(9000, 512, dtype=torch.int64)}
    assert parts_by_size(torch.nn.Linear(900, 900), mixed=False)(batch) == 1
    assert parts_by_size(tiny.build("bert", tiny.THREE), mixed=False)({"labels": torch.zeros(9000)}) == 1


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


@given(st.integers(0, 300), st.integers(1, 300))
def test_a_part_ends_behind_its_longest_text(longest: int, length: int):
    longest = min(longest, length)
    mask = torch.zeros(1, 2, length)
    mask[0, 1, :longest] = 1
    ids = torch.arange(2 * length).reshape(1, 2, length)
    part = {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(1), "targets": torch.zeros(1, length)}
    short = trimmed(part)
    end = short["input_ids"].shape[-1]
    assert max(longest, 1) <= end < longest + LENGTHS_APART + (longest == 0)
    assert end % LENGTHS_APART == 0 or end == length  # few sizes, and none behind the batch's own end
    assert torch.equal(short["input_ids"], ids[..., :end])
    assert torch.equal(short["attention_mask"], mask[..., :end])
    assert [tuple(short[name].shape) for name in ("labels", "targets")] == [(1,), (1, length)]


def test_a_part_that_begins_with_padding_stays_whole_and_labels_go_with_their_text():
    ids, mask = torch.arange(96).reshape(2, 48), torch.zeros(2, 48)
    mask[0, :20] = mask[1, :7] = 1
    left = {"input_ids": ids, "attention_mask": mask.flip(-1)}
    assert trimmed(left)["input_ids"].shape == (2, 48)
    labels = torch.where(mask > 0, ids, -100)
    words = trimmed({"input_ids": ids, "attention_mask": mask, "labels": labels})
    assert torch.equal(words["labels"], labels[:, :32])


MOSTLY_EMPTY = torch.tensor([[1] + [0] * 39])


@pytest.mark.parametrize(
    "part",
    [
        {"input_ids": torch.ones(2, 40)},
        {"attention_mask": MOSTLY_EMPTY, "labels": torch.full((1, 40), 5)},  # of a text it becomes
        {"attention_mask": MOSTLY_EMPTY, "decoder_attention_mask": torch.ones(1, 40)},
        {"attention_mask": MOSTLY_EMPTY, "seen": torch.ones(1, 40, 40)},
    ],
)
def test_a_part_of_which_more_is_said_by_place_stays_whole(part: dict[str, Any]):
    assert trimmed(part) is part


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
