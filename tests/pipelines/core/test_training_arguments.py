"""What a stage's `arguments` may say, sentence by sentence, and held equal to transformers' own class."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core import generate_model_types
from pipelines.core.config import flatten
from pipelines.core.errors import StageError
from pipelines.core.registry import STAGES
from pipelines.core.training_arguments import (
    OPTIMIZERS,
    OWN,
    RENAMED,
    RESERVED,
    SYNONYMS,
    TRACKERS,
    Accepts,
    Positive,
    TrainingArguments,
    accepted,
    choice,
)

ALLOWED = [name for name in TrainingArguments.model_fields if name not in OWN]


def issues(words: Any, kind: type[TrainingArguments] = TrainingArguments) -> dict[tuple[Any, ...], str]:
    """Every mistake by its place."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(words)
    return dict(flatten(caught.value))


# ---- sentences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place", "sentence"),
    [
        ({"learning_rat": 1e-3}, "learning_rat", "Did you mean 'learning_rate'?"),
        ({"lr": 1e-3}, "lr", "Did you mean 'learning_rate'?"),
        ({"epochs": 3}, "epochs", "Did you mean 'num_train_epochs'?"),
        ({"learning_rate": -0.1}, "learning_rate", "is -0.1, must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate", "must be a finite number"),
        ({"learning_rate": "1e-3"}, "learning_rate", 'is "1e-3", must be a number'),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size", "must be at least 1"),
        ({"per_device_train_batch_size": 2.0}, "per_device_train_batch_size", "must be one of auto, a whole number"),
        ({"global_batch_size": 0}, "global_batch_size", "must be at least 1"),
        ({"max_steps": 0}, "max_steps", "at least 1, or -1 to count epochs"),
        ({"num_train_epochs": 0}, "num_train_epochs", "must be greater than 0"),
        ({"warmup_steps": 1.5}, "warmup_steps", "a share of all steps below 1, or a whole number"),
        ({"warmup_ratio": 1.5}, "warmup_ratio", "must be less than 1"),
        ({"warmup_ratio": 0.1, "warmup_steps": 5}, "warmup_ratio", "an earlier name of 'warmup_steps', which is given"),
        ({"group_by_length": "yes"}, "group_by_length", "must be true or false"),
        ({"evaluation_strategy": "never"}, "evaluation_strategy", "must be one of no, steps, epoch"),
        ({"optim": "adamw"}, "optim", "Did you mean 'adamw_torch'?"),
        ({"report_to": ("tensorbord",)}, "report_to", "Did you mean 'tensorboard'?"),
        ({"report_to": "all"}, "report_to", "must be one of none"),
        ({"save_total_limit": 1}, "save_total_limit", "must be at least 2"),
        ({"seed": 1}, "seed", "the stage's own key 'seed'"),
        ({"output_dir": "here"}, "output_dir", "runs/<name>/stages"),
        ({"bf16": True}, "bf16", "launch.mixed_precision"),
        ({"deepspeed": "zero2.json"}, "deepspeed", "launch"),
        ({"no_cuda": True}, "no_cuda", "CUDA_VISIBLE_DEVICES"),
        ({"push_to_hub": True}, "push_to_hub", "{stage: publish, to: hub:owner/name}"),
        ({"hub_token": "secret"}, "hub_token", "HF_TOKEN"),
        ({"resume_from_checkpoint": "x"}, "resume_from_checkpoint", "finery resume"),
        ({"run_name": "x"}, "run_name", "the recipe's 'name'"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "lr_scheduler_type", "set eval_strategy"),
        ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers", "dataloader_num_workers"),
        ({"load_best_model_at_end": True}, "load_best_model_at_end", "set eval_strategy to steps or epoch"),
        ({"global_batch_size": 4, "gradient_accumulation_steps": 2}, "gradient_accumulation_steps", "follows from"),
        (
            {"load_best_model_at_end": True, "evaluation_strategy": "epoch", "save_strategy": "no"},
            "load_best_model_at_end",
            "save_strategy: epoch",
        ),
    ],
)
def test_one_mistake_is_one_sentence_at_its_key(words: dict[str, Any], place: str, sentence: str) -> None:
    found = issues(words)
    assert list(found) == [(place,)]
    assert sentence in found[place,]


def test_a_token_is_never_repeated_in_the_sentence() -> None:
    found = issues({"hub_token": "secret", "push_to_hub_token": "secret"})
    assert all("secret" not in sentence for sentence in found.values())


def test_every_mistake_is_said_at_once_in_the_order_of_the_recipe() -> None:
    wrong = {"learning_rte": 1e-3, "seed": 3, "max_steps": "ten", "gradient_accumulation_steps": 2, "optim": "x"}
    found = issues(wrong | {"global_batch_size": 4})
    assert [place for (place,) in found] == list(wrong)
    assert "Did you mean 'learning_rate'?" in found["learning_rte",]
    assert issues([1]) == {(): "is [1], must be a mapping of TrainingArguments names"}


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_names_are_refused(name: str) -> None:
    assert issues({name: None}) == {(name,): RESERVED[name]}


@pytest.mark.parametrize("each", ["per_device_train_batch_size", "per_gpu_train_batch_size"])
def test_a_batch_that_does_not_divide_the_global_one_is_a_mistake(each: str) -> None:
    assert issues({"global_batch_size": 32, each: 5}) == {(each,): "is 5, which does not divide global_batch_size 32"}
    assert TrainingArguments.model_validate({"global_batch_size": 32, each: 8}).per_device_train_batch_size == 8


# ---- what was given, and what was not -------------------------------------------------------------------------------


def test_earlier_names_are_translated_with_a_warning_each() -> None:
    given_words = {"warmup_ratio": 0.06, "evaluation_strategy": "epoch", "group_by_length": True, "adafactor": True}
    arguments = TrainingArguments(**given_words, max_steps=3)
    assert arguments.given() == {
        "max_steps": 3,
        "warmup_steps": 0.06,
        "optim": "adafactor",
        "eval_strategy": "epoch",
        "train_sampling_strategy": "group_by_length",
    }
    warnings = arguments.warnings()
    assert len(warnings) == 4
    assert any("arguments.warmup_ratio" in each and "warmup_steps: 0.06" in each for each in warnings)
    assert arguments.written_name("warmup_steps") == "warmup_ratio"
    assert arguments.plain() == {**given_words, "max_steps": 3}  # the recipe stays as it was written


def test_todays_names_are_left_as_they_are() -> None:
    words = {"learning_rate": 1e-3, "global_batch_size": 32, "warmup_steps": 100, "report_to": ("wandb",)}
    arguments = TrainingArguments.model_validate(words)
    assert arguments.given() == words | {"report_to": ["wandb"]}
    assert arguments.of_the_trainer() == {name: value for name, value in arguments.given().items() if name not in OWN}
    assert arguments.warnings() == []


def test_what_is_given_is_kept_even_where_it_is_the_default() -> None:
    arguments = TrainingArguments(learning_rate=5e-5)
    assert arguments != TrainingArguments()
    assert arguments.plain() == {"learning_rate": 5e-5}


sizes = st.integers(1, 96)


@given(sizes, st.integers(1, 16), st.none() | sizes)
def test_the_three_factors_make_the_global_batch_or_are_refused(total: int, processes: int, each: int | None) -> None:
    words = {"global_batch_size": total} | ({} if each is None else {"per_device_train_batch_size": each})
    arguments = TrainingArguments.model_construct(set(words), **words)
    share, rest = divmod(total, processes)
    possible = rest == 0 and (each is None or each >= share or share % each == 0)
    if possible:
        found, steps = arguments.batch_sizes(processes)
        assert found * steps * processes == total
        assert found == (share if each is None else min(each, share))  # what fits into memory is never exceeded
    else:
        with pytest.raises(StageError, match=f"global_batch_size {total} "):
            arguments.batch_sizes(processes)


@given(st.none() | sizes, st.none() | sizes, st.integers(1, 16))
def test_without_a_global_batch_the_words_mean_what_transformers_means(
    each: int | None, steps: int | None, processes: int
) -> None:
    words = {"per_device_train_batch_size": each, "gradient_accumulation_steps": steps}
    arguments = TrainingArguments(**{key: value for key, value in words.items() if value is not None})
    assert arguments.batch_sizes(processes) == (each or 8, steps or 1)


# ---- numbers of a method --------------------------------------------------------------------------------------------


class Method(TrainingArguments):
    """A stage's own."""

    beta: Positive = 0.1
    """A number."""
    loss_type: Annotated[str | list[str], Accepts(choice("sigmoid", "hinge"), listed=True)] = "sigmoid"
    """A choice, or a list of some."""


def test_own_numbers_stand_among_the_arguments_and_are_told_apart() -> None:
    arguments = Method.model_validate({"beta": 1, "loss_type": ("sigmoid", "hinge"), "max_steps": 3})
    assert arguments.own() == {"beta": 1.0, "loss_type": ["sigmoid", "hinge"]}
    assert arguments.of_the_trainer() == {"max_steps": 3}
    assert Method(max_steps=3).own() == {"beta": 0.1, "loss_type": "sigmoid"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"beta": 0}, "is 0, must be greater than 0"),
        ({"betta": 1}, "Did you mean 'beta'?"),
        ({"beta": [0.1]}, "must be a number"),
        ({"loss_type": "sigmod"}, "Did you mean 'sigmoid'?"),
        ({"loss_type": []}, "at least one entry"),
        ({"loss_type": ["sigmoid", "x"]}, 'has an entry that is "x"'),
        ({"loss_type": 3}, "must be one of"),
    ],
)
def test_own_numbers_are_judged_in_the_words_of_the_other_arguments(words: dict[str, Any], sentence: str) -> None:
    found = issues(words, Method)
    assert list(found) == [tuple(words)]
    assert sentence in found[tuple(words)]


@pytest.mark.parametrize("stage", [name for name in STAGES if "arguments" in STAGES.load(name).model_fields])
def test_every_argument_of_every_stage_is_explained_and_accepts_its_own_default(stage: str) -> None:
    kind = STAGES.load(stage).model_fields["arguments"].annotation
    assert issubclass(kind, TrainingArguments)
    for name, field in kind.model_fields.items():
        assert name in kind.descriptions()
        accepts = next(each for each in field.metadata if isinstance(each, Accepts))
        assert field.default is None or accepts.misfit(field.default) is None, name


# ---- the schema -----------------------------------------------------------------------------------------------------


def test_the_schema_knows_types_choices_and_bounds_and_is_closed() -> None:
    schema = Method.model_json_schema()
    described = schema["properties"]
    assert described["learning_rate"].items() >= {"type": "number", "minimum": 0, "default": 5e-5}.items()
    assert described["save_strategy"]["enum"] == ["no", "steps", "epoch", "best"]
    assert described["adam_beta1"].items() >= {"type": "number", "minimum": 0, "exclusiveMaximum": 1}.items()
    assert described["loss_type"]["anyOf"][1]["items"] == {"enum": ["sigmoid", "hinge"]}
    assert set(described) == {*ALLOWED, *OWN, "beta", "loss_type"}
    assert schema["additionalProperties"] is False


def test_the_schema_accepts_names_of_earlier_versions_and_does_not_offer_them() -> None:
    import re

    schema = TrainingArguments.model_json_schema()
    (pattern,) = schema["patternProperties"]
    assert all(re.search(pattern, name) for name in RENAMED)
    assert not set(RENAMED) & set(schema["properties"])
    assert not re.search(pattern, "seed")


# ---- transformers' own class ----------------------------------------------------------------------------------------


def live_arguments() -> dict[str, str]:
    """Every field of transformers' TrainingArguments with its type words."""
    from transformers import TrainingArguments as Live

    hints = typing.get_type_hints(Live)
    return {each.name: generate_model_types.kind(hints[each.name]) for each in fields(Live) if each.init}


def test_every_live_argument_is_allowed_reserved_or_renamed_and_only_one_of_them() -> None:
    tables = (ALLOWED, RESERVED, RENAMED)
    for name in live_arguments():
        assert sum(name in table for table in tables) == 1, name
    names = [name for table in (*tables, OWN) for name in table]
    assert len(names) == len(set(names))


def test_every_allowed_argument_exists_with_a_compatible_type() -> None:
    live = live_arguments()
    for name in ALLOWED:
        words = set(live[name].split("|"))
        for word in accepted(name).kind.split("|"):
            text = word.startswith("=") and ("str" in words or "dict" in words)  # enums are written as texts
            whole = word == "int" and "float" in words
            resolved = (name, word) == ("per_device_train_batch_size", "=auto")  # a number by then
            assert word in words or text or whole or resolved or "any" in words, (name, word, live[name])


OURS = {"logging_steps": 10, "save_total_limit": 2, "train_sampling_strategy": None}
"""Defaults that are not transformers': `None` leaves it to the stage, which knows whether it has lengths."""


def test_the_defaults_are_those_of_the_live_class() -> None:
    from transformers import TrainingArguments as Live

    live = {each.name: each.default if each.default is not MISSING else each.default_factory() for each in fields(Live)}  # type: ignore[misc]
    differing = {
        name: field.default
        for name, field in TrainingArguments.model_fields.items()
        if name not in OWN and field.default != getattr(live[name], "value", live[name])
    }
    assert differing == OURS


def test_every_new_name_is_allowed_and_no_old_name_is() -> None:
    for old, renamed in RENAMED.items():
        assert renamed.target in ALLOWED
        assert old not in ALLOWED
        for new in (renamed.values or {}).values():
            assert accepted(renamed.target).misfit(new) is None


def test_synonyms_lead_to_names_that_are_allowed() -> None:
    live = live_arguments()
    for wrong, right in SYNONYMS.items():
        assert right in TrainingArguments.model_fields
        assert wrong not in live


def test_choices_are_those_of_the_live_enums() -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    def choices(name: str) -> set[str]:
        return {word[1:] for word in accepted(name).kind.split("|") if word.startswith("=")}

    assert choices("lr_scheduler_type") == {each.value for each in SchedulerType}
    assert choices("eval_strategy") == choices("logging_strategy") == {each.value for each in IntervalStrategy}
    assert choices("save_strategy") == {each.value for each in SaveStrategy}
    assert choices("optim") == set(OPTIMIZERS) <= {"muon", *(each.value for each in OptimizerNames)}
    assert set(TRACKERS) == set(INTEGRATION_TO_CALLBACK)


EXAMPLES = [
    {"max_steps": 10, "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "optim": "adafactor"},
    {"num_train_epochs": 3, "evaluation_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"per_gpu_train_batch_size": 4, "group_by_length": True, "gradient_checkpointing": True, "weight_decay": 0},
    {"eval_strategy": "steps", "eval_steps": 10, "save_steps": 20, "load_best_model_at_end": True},
    {"report_to": ("tensorboard",), "logging_steps": 0.25, "warmup_steps": 100, "adafactor": True, "max_grad_norm": 0},
    {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2, "ddp_timeout": 60, "neftune_noise_alpha": 5},
]


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_live_class_takes_what_is_allowed_here(words: dict[str, Any], tmp_path: Any) -> None:
    from transformers import TrainingArguments as Live

    translated = TrainingArguments(**words).of_the_trainer()
    live = Live(output_dir=str(tmp_path), **translated)
    for key in ("max_steps", "learning_rate", "eval_steps", "activation_checkpointing", "per_device_train_batch_size"):
        if key in translated:
            assert getattr(live, key) == translated[key]


STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}
REFUSED = [
    {"lr_scheduler_type": "reduce_lr_on_plateau"},
    {"dataloader_prefetch_factor": 2},
    {"warmup_steps": -1},
    {"logging_steps": 2.5},
    {"load_best_model_at_end": True},
    {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "steps"},
    {**STEPS, "load_best_model_at_end": True, "eval_steps": 30, "save_steps": 40},
    {**STEPS, "load_best_model_at_end": True, "eval_steps": 0.1, "save_steps": 40},
    {"torch_empty_cache_steps": 0},
    {"lr_scheduler_type": "cosin"},
    {"optim": "adam"},
    {"eval_strategy": "yes"},
]


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_live_class_refuses_is_refused_here(words: dict[str, Any], tmp_path: Any) -> None:
    from transformers import TrainingArguments as Live

    with pytest.raises(ValueError):
        Live(output_dir=str(tmp_path), **words)
    assert len(issues(words)) == 1
