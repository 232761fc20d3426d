"""Batch sizes multiply to what was asked for, and the user's words reach the live TrainingArguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import StageError
from pipelines.core.interfaces import Context, World
from pipelines.core.training_arguments import RESERVED
from pipelines.trainers.arguments import DEFAULT_BATCH, batch_sizes, checked, in_todays_names, training_arguments

sizes = st.integers(1, 96)


@given(sizes, st.integers(1, 16), st.none() | sizes)
def test_the_three_factors_make_the_global_batch_or_are_refused(total: int, processes: int, each: int | None) -> None:
    words = {"global_batch_size": total} | ({} if each is None else {"per_device_train_batch_size": each})
    share, rest = divmod(total, processes)
    possible = rest == 0 and (each is None or each >= share or share % each == 0)
    if possible:
        found, steps = batch_sizes(words, processes)
        assert found * steps * processes == total
        assert found == (share if each is None else min(each, share))  # what fits into memory is never exceeded
    else:
        with pytest.raises(StageError, match=f"global_batch_size {total} "):
            batch_sizes(words, processes)


@given(st.none() | sizes, st.none() | sizes, st.integers(1, 16))
def test_without_a_global_batch_the_words_mean_what_transformers_means(
    each: int | None, steps: int | None, processes: int
) -> None:
    words = {"per_device_train_batch_size": each, "gradient_accumulation_steps": steps}
    given_words = {key: value for key, value in words.items() if value is not None}
    assert batch_sizes(given_words, processes) == (each or DEFAULT_BATCH, steps or 1)


def test_the_default_batch_is_that_of_transformers() -> None:
    from transformers import TrainingArguments

    assert TrainingArguments(output_dir="x", use_cpu=True).per_device_train_batch_size == DEFAULT_BATCH


def places(value: Any) -> dict[tuple[Any, ...], str]:
    with pytest.raises(ConfigIssues) as caught:
        checked(value)
    return dict(caught.value.found)


@pytest.mark.parametrize("each", ["per_device_train_batch_size", "per_gpu_train_batch_size"])
def test_a_batch_that_does_not_divide_the_global_one_is_a_mistake(each: str) -> None:
    (message,) = places({"global_batch_size": 32, each: 5}).values()
    assert message == "is 5, which does not divide global_batch_size 32"
    assert checked({"global_batch_size": 32, each: 8}) == {"global_batch_size": 32, each: 8}


def test_accumulation_beside_a_global_batch_is_a_mistake() -> None:
    found = places({"global_batch_size": 32, "gradient_accumulation_steps": 2})
    assert found == {("gradient_accumulation_steps",): "follows from global_batch_size; leave one of the two out"}


def test_every_mistake_is_found_at_once() -> None:
    found = places(
        {"learning_rte": 1e-3, "seed": 3, "max_steps": "ten", "gradient_accumulation_steps": 2, "global_batch_size": 4}
    )
    assert {place[0] for place in found} == {"learning_rte", "seed", "max_steps", "gradient_accumulation_steps"}
    assert "Did you mean 'learning_rate'?" in found["learning_rte",]
    assert list(places([1])) == [()]


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_names_are_refused(name: str) -> None:
    assert places({name: None}) == {(name,): RESERVED[name]}


def test_the_words_reach_the_live_object(context: Callable[..., Context]) -> None:
    words = {
        "learning_rate": 3e-4,
        "num_train_epochs": 5,
        "weight_decay": 0.01,
        "lr_scheduler_type": "cosine",
        "adam_beta2": 0.98,
        "optim": "adafactor",
    }
    live = training_arguments(context(), checked(words))
    for name, value in words.items():
        assert getattr(live, name) == value
    assert live.per_device_train_batch_size == DEFAULT_BATCH


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        ("evaluation_strategy", "epoch", "eval_strategy", "epoch"),
        ("warmup_ratio", 0.06, "warmup_steps", 0.06),
        ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
        ("gradient_checkpointing", True, "activation_checkpointing", True),
        ("per_gpu_train_batch_size", 3, "per_device_train_batch_size", 3),
        ("adafactor", True, "optim", "adafactor"),
    ],
)
def test_earlier_names_reach_the_live_object_with_a_warning(
    old: str, value: Any, new: str, expected: Any, context: Callable[..., Context], events: Any
) -> None:
    place = context()
    live = training_arguments(place, checked({old: value}))
    assert getattr(live, new) == expected
    assert in_todays_names({old: value}) == {new: expected}
    (warning,) = [event["message"] for event in events(place) if event["event"] == "warning"]
    assert f"arguments.{old} " in warning
    assert new in warning


def test_only_the_main_process_warns(context: Callable[..., Context], events: Any) -> None:
    place = context(world=World(rank=1, size=1))
    training_arguments(place, {"warmup_ratio": 0.1})
    assert events(place) == []


def test_what_finery_fixes_stays_fixed(context: Callable[..., Context]) -> None:
    place = context(seed=11, precision="bf16")
    live = training_arguments(place, {"global_batch_size": 12, "per_device_train_batch_size": 4, "save_total_limit": 1})
    assert (live.per_device_train_batch_size, live.gradient_accumulation_steps) == (4, 3)
    assert live.save_total_limit == 2  # a kill may spoil the one being written
    assert live.seed == 11
    assert live.bf16
    assert not live.fp16
    assert live.output_dir == str(place.folder / "checkpoints")
    assert not live.remove_unused_columns
    assert not live.logging_nan_inf_filter
    assert live.report_to == []


@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_the_best_model_is_saved_where_it_is_measured(strategy: str, context: Callable[..., Context]) -> None:
    live = training_arguments(context(), {"eval_strategy": strategy, "load_best_model_at_end": True})
    assert live.save_strategy == strategy
    assert live.greater_is_better is False  # by loss, unless a metric is named
    live = training_arguments(
        context(), {"eval_strategy": strategy, "load_best_model_at_end": True, "metric_for_best_model": "f1"}
    )
    assert live.greater_is_better is True
