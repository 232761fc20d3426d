"""Plans for GPUs that are not here."""

import json

import pytest

from pipelines.core.errors import CommandError
from pipelines.core.load import loads
from pipelines.runs import hardware
from pipelines.runs.planning.plan import STEP_SECONDS, plan
from pipelines.runs.planning.scaling import cluster, plan_on

RECIPE = """
name: large
model: {architecture: {preset: llama-1b}}
tokenizer: {train: byte_bpe, vocab_size: 32000}
stages:
  - stage: pretrain
    objective: causal_lm
    datasets: [{path: text.txt}]
    block_size: 2048
    arguments: {max_steps: 1000, global_batch_size: 512, per_device_train_batch_size: 1, activation_checkpointing: true}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 40)
    return loads(RECIPE, folder=tmp_path)


def test_gpus_are_named_by_number_kind_and_memory():
    named = cluster("16xA100-40GB", hosts=4, network_gbps=100, price=1.5)
    assert (named.gpu, named.processes, named.per_host, named.memory) == ("A100", 16, 4, 40_000_000_000)
    assert named.network == 4 * 100e9 / 8
    assert named.bytes_per_second == pytest.approx(0.8 * 50e9)
    one_host = cluster("8 x rtx 4090")
    assert (one_host.gpu, one_host.hosts, one_host.bytes_per_second) == ("RTX 4090", 1, pytest.approx(0.8 * 32e9))
    assert cluster("64xH100").hosts == 8


@pytest.mark.parametrize(
    ("text", "hosts", "message"),
    [
        ("H100", None, "must be a number and a GPU such as 8xH100"),
        ("8xH1000", None, "Did you mean 'H100'?"),
        ("0xH100", None, "must be from 1 to 65536"),
        ("9xH100", None, "cannot be shared evenly by hosts of 8; set --hosts to a divisor of 9"),
        ("8xH100", 3, "cannot be shared evenly by 3 hosts"),
    ],
)
def test_what_names_no_gpus_is_refused_in_a_sentence(text, hosts, message):
    with pytest.raises(CommandError, match=message):
        cluster(text, hosts)


def test_a_plan_says_what_fits_and_what_each_profile_costs(recipe):
    target = cluster("8xA100-40GB", price=2.0)
    made = plan_on(recipe, target)
    ddp, fsdp2 = made.profiles
    assert (ddp.profile, fsdp2.profile) == ("ddp", "fsdp2")
    assert (ddp.fits, fsdp2.fits, made.recommended) == (True, True, "ddp")
    # 16 GB of weights, gradients and optimizer state do not fit into 12
    small = plan_on(recipe, cluster("8xA10-12GB"))
    assert [each.fits for each in small.profiles] == [False, True]
    assert small.recommended == "fsdp2"
    assert plan_on(recipe, cluster("2xT4-2GB")).recommended is None
    stage = ddp.stages[0]
    whole = plan(recipe, device=hardware.gpu("A100", 8)).stages[0]
    operations = whole.flops / whole.steps / 8
    computing = operations / made.flops_per_second + STEP_SECONDS
    assert stage.step_seconds == pytest.approx(computing + stage.added_seconds)
    assert stage.seconds == pytest.approx(1000 * stage.step_seconds)
    assert stage.utilisation == pytest.approx(operations / stage.step_seconds / 312e12)
    assert stage.tokens_per_second == pytest.approx(512 * 2048 / stage.step_seconds)
    assert ddp.price == pytest.approx(ddp.seconds / 3600 * 8 * 2.0)
    assert fsdp2.stages[0].sent > 20 * stage.sent  # 64 batches a step: whole weights for each, gradients once
    assert json.loads(json.dumps(made.to_json()))["recommended"] == "ddp"
    text = "\n".join(made.lines())
    assert "the simplest that fits: ddp" in text
    assert f"{ddp.price:,.2f}" in text


def test_one_gpu_is_planned_without_others(recipe):
    (alone,) = plan_on(recipe, cluster("1xH100")).profiles
    assert (alone.profile, alone.stages[0].sent, alone.stages[0].added_seconds) == ("single", 0, 0.0)


def test_more_gpus_than_examples_are_told(recipe):
    notes = plan_on(recipe, cluster("1024xH100")).notes
    assert any("global_batch_size 512 gives 1024 GPUs less than an example each" in note for note in notes)


def test_a_stage_of_unknown_length_is_neither_free_nor_left_out(tmp_path):
    text = RECIPE.replace("max_steps: 1000, ", "").replace("text.txt", "someone/large")
    (ddp, _) = plan_on(loads(text, folder=tmp_path), cluster("8xH100", price=2.0)).profiles
    assert [stage.id for stage in ddp.stages] == ["pretrain"]
    assert (ddp.seconds, ddp.price) == (None, None)
    assert ddp.stages[0].memory
