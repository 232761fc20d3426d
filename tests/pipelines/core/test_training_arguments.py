"""What a stage's `arguments` may say, sentence by sentence."""

import pytest

from pipelines.core.config import ConfigIssues
from pipelines.core.training_arguments import ALLOWED, OWN, RENAMED, RESERVED, checked, mistakes, schema, translate


@pytest.mark.parametrize(
    ("words", "place", "said"),
    [
        ({"learning_rat": 1e-3}, "learning_rat", "Did you mean 'learning_rate'?"),
        ({"lr": 1e-3}, "lr", "Did you mean 'learning_rate'?"),
        ({"epochs": 3}, "epochs", "Did you mean 'num_train_epochs'?"),
        ({"learning_rate": -0.1}, "learning_rate", "is -0.1, must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate", "must be a finite number"),
        ({"learning_rate": "1e-3"}, "learning_rate", 'is "1e-3", must be a number'),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size", "must be at least 1"),
        ({"per_device_train_batch_size": 2.0}, "per_device_train_batch_size", "must be a whole number"),
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
        (
            {"load_best_model_at_end": True, "evaluation_strategy": "epoch", "save_strategy": "no"},
            "load_best_model_at_end",
            "save_strategy: epoch",
        ),
    ],
)
def test_one_mistake_is_one_sentence_at_its_key(words, place, said):
    found = mistakes(words)
    assert [place for place, _ in found] == [(place,)]
    assert said in found[0][1]


def test_a_token_is_never_repeated_in_the_sentence():
    assert all(
        "secret" not in message for _, message in mistakes({"hub_token": "secret", "push_to_hub_token": "secret"})
    )


def test_every_mistake_is_said_at_once():
    assert len(mistakes({"lr": 1, "seed": 1, "max_steps": 0, "optim": "x"})) == 4


def test_earlier_names_are_translated_with_a_warning_each():
    words, warnings = translate(
        {
            "warmup_ratio": 0.06,
            "evaluation_strategy": "epoch",
            "group_by_length": True,
            "max_steps": 3,
            "adafactor": True,
        }
    )
    assert words == {
        "warmup_steps": 0.06,
        "eval_strategy": "epoch",
        "train_sampling_strategy": "group_by_length",
        "max_steps": 3,
        "optim": "adafactor",
    }
    assert len(warnings) == 4
    assert "arguments.warmup_ratio" in warnings[0]
    assert "warmup_steps: 0.06" in warnings[0]


def test_todays_names_are_left_as_they_are():
    words = {"learning_rate": 1e-3, "global_batch_size": 32, "warmup_steps": 100, "report_to": ("wandb",)}
    assert mistakes(words) == []
    assert translate(words) == ({**words, "report_to": ["wandb"]}, [])


def test_no_name_stands_in_two_tables():
    tables = (ALLOWED, OWN, RESERVED, RENAMED)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


def test_the_validator_raises_every_mistake_and_else_changes_nothing():
    with pytest.raises(ConfigIssues) as caught:
        checked({"seed": 1, "lr": 2})
    assert len(caught.value.found) == 2
    with pytest.raises(ConfigIssues, match="must be a mapping"):
        checked([1])
    assert checked({"warmup_ratio": 0.1}) == {"warmup_ratio": 0.1}


def test_the_schema_knows_types_choices_and_bounds():
    described = schema()["properties"]
    assert described["learning_rate"] == {"type": "number", "minimum": 0}
    assert described["save_strategy"] == {"enum": ["no", "steps", "epoch", "best"]}
    assert described["adam_beta1"] == {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    assert set(described) == {*ALLOWED, *OWN}
