"""The user's words, and what Finery fixes, reach the live TrainingArguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.core.interfaces import Context, World
from pipelines.core.registry import METRICS
from pipelines.core.training_arguments import TrainingArguments
from pipelines.metrics.base import Metric
from pipelines.trainers.training_args import deepspeed_configuration, training_arguments


def test_the_words_reach_the_live_object(context: Callable[..., Context]) -> None:
    words = {
        "learning_rate": 3e-4,
        "num_train_epochs": 5,
        "weight_decay": 0.01,
        "lr_scheduler_type": "cosine",
        "adam_beta2": 0.98,
        "optim": "adafactor",
    }
    live = training_arguments(context(), TrainingArguments.model_validate(words))
    for name, value in words.items():
        assert getattr(live, name) == value
    assert live.per_device_train_batch_size == 8


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        ("evaluation_strategy", "epoch", "eval_strategy", "epoch"),
        ("warmup_ratio", 0.06, "warmup_steps", 0.06),
        ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
        ("per_gpu_train_batch_size", 3, "per_device_train_batch_size", 3),
        ("adafactor", True, "optim", "adafactor"),
        ("gradient_checkpointing", True, "activation_checkpointing", True),
    ],
)
def test_earlier_names_reach_the_live_object_with_a_warning(
    old: str, value: Any, new: str, expected: Any, context: Callable[..., Context], events: Any
) -> None:
    place = context()
    live = training_arguments(place, TrainingArguments.model_validate({old: value}))
    assert getattr(live, new) == expected
    (warning,) = [event["message"] for event in events(place) if event["event"] == "warning"]
    assert f"arguments.{old} " in warning
    assert new in warning


def test_only_the_main_process_warns(context: Callable[..., Context], events: Any) -> None:
    place = context(world=World(rank=1, size=1))
    training_arguments(place, TrainingArguments(warmup_ratio=0.1))
    assert events(place) == []


def test_what_finery_fixes_stays_fixed(context: Callable[..., Context]) -> None:
    place = context(seed=11, precision="bf16")
    live = training_arguments(
        place, TrainingArguments(global_batch_size=12, per_device_train_batch_size=4, save_total_limit=None)
    )
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
    live = training_arguments(context(), TrainingArguments(eval_strategy=strategy, load_best_model_at_end=True))
    assert live.save_strategy == strategy
    assert live.greater_is_better is False  # by loss, unless a metric is named
    words = {"eval_strategy": strategy, "load_best_model_at_end": True, "metric_for_best_model": "f1"}
    live = training_arguments(context(), TrainingArguments(**words))
    assert live.greater_is_better is True


@pytest.mark.parametrize("prefix", ["", "eval_"])
def test_a_score_that_is_better_when_smaller_selects_the_smallest(
    prefix: str, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS._table, "errors", f"{__name__}:Errors")
    words: dict[str, Any] = {"eval_strategy": "epoch", "load_best_model_at_end": True}
    overrides = {"metric_for_best_model": f"{prefix}errors"}
    assert training_arguments(context(), TrainingArguments(**words), overrides).greater_is_better is False
    words["greater_is_better"] = True
    assert training_arguments(context(), TrainingArguments(**words), overrides).greater_is_better is True


class Errors(Metric):
    """A metric whose perfect score is its smallest."""

    best, worst = 0.0, 1.0


def test_what_the_stage_decides_overrides_the_words(context: Callable[..., Context]) -> None:
    overrides = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "metric_for_best_model": "f1"}
    live = training_arguments(context(), TrainingArguments(global_batch_size=12), overrides)
    assert (live.per_device_train_batch_size, live.gradient_accumulation_steps) == (6, 1)
    assert live.metric_for_best_model == "f1"


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_reads_deepspeed_s_configuration(stage: int) -> None:
    """That is as far as it goes without the package and a GPU."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    read = HfDeepSpeedConfig(deepspeed_configuration(stage))
    assert (read.is_zero2(), read.is_zero3(), read.is_offload()) == (stage == 2, stage == 3, False)
    assert read.get_value("train_micro_batch_size_per_gpu") == "auto"
    assert read.get_value("zero_optimization.stage3_gather_16bit_weights_on_model_save") is (stage == 3)
