"""Plans for GPUs that are not here."""

import json

import pytest

from pipelines.core.errors import CommandError
from pipelines.core.load import loads
from pipelines.runs import hardware
from pipelines.runs.planning.plan import STEP_SECONDS, bytes_text, plan
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
    ddp, fsdp2, zero2, zero3 = made.profiles
    assert [each.profile for each in made.profiles] == ["ddp", "fsdp2", "zero2", "zero3"]
    assert (ddp.fits, fsdp2.fits, made.recommended) == (True, True, "ddp")
    # 16 GB of weights, gradients and optimizer state do not fit into 12
    small = plan_on(recipe, cluster("8xA10-12GB"))
    assert [each.fits for each in small.profiles] == [False, True, True, True]
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
    assert zero2.stages[0].sent < fsdp2.stages[0].sent
    assert zero3.stages[0].sent < fsdp2.stages[0].sent  # it gathers weights of 16 bits
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
    ddp, *_ = plan_on(loads(text, folder=tmp_path), cluster("8xH100", price=2.0)).profiles
    assert [stage.id for stage in ddp.stages] == ["pretrain"]
    assert (ddp.seconds, ddp.price) == (None, None)
    assert ddp.stages[0].memory


def test_a_batch_that_the_recipe_leaves_open_is_the_largest_that_fits(tmp_path):
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 40)
    text = RECIPE.replace("global_batch_size: 512, per_device_train_batch_size: 1", "global_batch_size: 4096")
    text = text.replace("activation_checkpointing: true", "per_device_train_batch_size: auto")
    auto = loads(text, folder=tmp_path)
    made = plan_on(auto, cluster("8xH100"))
    for each in made.profiles:
        (stage,) = each.stages
        assert each.fits
        assert stage.memory <= hardware.ROOM * 80e9
        larger = loads(text.replace("size: auto", f"size: {2 * stage.batch}"), folder=tmp_path)
        (too_large,) = [other for other in plan_on(larger, cluster("8xH100")).profiles if other.profile == each.profile]
        assert not too_large.fits
        same = loads(text.replace("size: auto", f"size: {stage.batch}"), folder=tmp_path)
        (as_given,) = [other for other in plan_on(same, cluster("8xH100")).profiles if other.profile == each.profile]
        assert as_given.stages[0].memory == stage.memory
        assert as_given.stages[0].batch is None
    assert f"with {made.profiles[0].stages[0].batch} examples at once (auto)" in "\n".join(made.lines())
    smallest = plan_on(auto, cluster("8xT4-2GB"))
    assert [each.stages[0].batch for each in smallest.profiles] == [1, 1, 1, 1]
    assert smallest.recommended is None
    assert plan_on(auto, cluster("8192xH100")).profiles[0].stages[0].batch == 1


def test_terabytes_are_called_so():
    assert bytes_text(2.7e12) == "2.7 TB"


def test_zero_is_planned_where_it_is_asked_for_and_never_the_simplest(tmp_path):
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 40)
    asked = loads(RECIPE, folder=tmp_path, overrides=["launch={profile: zero3, num_processes: 8}"])
    found = plan_on(asked, cluster("8xA100-40GB"))
    assert (found.asked, found.recommended) == ("zero3", "ddp")
    assert "the recipe asks for zero3, which fits" in found.lines()


@pytest.mark.parametrize(
    ("overrides", "profiles", "why"),
    [
        (["stages.pretrain.tuner=last_layer"], ["ddp", "fsdp2"], "zero2 is left out: pretrain: is last_layer, but"),
        (
            ["stages.pretrain.arguments.optim=adafactor"],
            ["ddp"],
            "fsdp2 is left out: pretrain: is adafactor, which needs whole matrices",
        ),
        (
            ["launch.mixed_precision=fp16"],
            ["ddp", "zero2", "zero3"],
            "fsdp2 is left out: launch.mixed_precision is fp16",
        ),
    ],
)
def test_a_profile_under_which_the_recipe_cannot_run_is_left_out_with_the_reason(tmp_path, overrides, profiles, why):
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 40)
    made = plan_on(loads(RECIPE, folder=tmp_path, overrides=overrides), cluster("8xH100"))
    assert [each.profile for each in made.profiles] == profiles
    assert any(note.startswith(why) for note in made.notes)


PPO = """
name: aligned
model: {architecture: {preset: llama-1b}}
tokenizer: {train: byte_bpe, vocab_size: 32000}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: text.txt}], arguments: {max_steps: 1}}
  - stage: ppo
    reward: {name: keyword, words: [good]}
    prompts: {path: text.txt, text: text, max_length: 64}
    arguments:
      {max_steps: 10, global_batch_size: 256, per_device_train_batch_size: 8, response_length: 100, num_ppo_epochs: 2,
       num_mini_batches: 2, local_rollout_forward_batch_size: 16}
"""


def test_sampling_under_fsdp2_gathers_every_layer_for_every_token(tmp_path):
    """`test_fsdp` counts the gathers of a divided model that writes."""
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 40)
    made = plan_on(loads(PPO, folder=tmp_path), cluster("8xH100"))
    ddp, fsdp2 = (each.stages[1] for each in made.profiles)
    parts = plan(loads(PPO, folder=tmp_path), device=hardware.gpu("H100", 8)).stages[1].parameters
    weights = 4 * parts["total"]
    layered = 4 * sum(parts[part] for part in ("attention", "feed_forward", "norms"))
    # 32 completions of each GPU: written in 2 batches, read by policy and reference, learnt from in 2 x 2 updates of 2
    sampled = 2 * 99 * layered
    expected = sampled + 2 * 3 * weights + 8 * (2 * layered + weights - layered + weights)
    assert fsdp2.sent == pytest.approx(7 / 8 * expected, rel=1e-3)
    assert ddp.sent == pytest.approx(4 * 2 * 7 / 8 * weights, rel=1e-3)
    assert fsdp2.step_seconds > 1.5 * ddp.step_seconds
    (note,) = [note for note in made.notes if "under fsdp2 each of the 100 tokens" in note]
    assert note.startswith("ppo: ")


def test_it_is_said_that_a_measured_network_is_not_read(recipe):
    lines = plan_on(recipe, cluster("8xH100")).lines()
    assert any("what `finery doctor --hosts` measured is of the hosts here" in line for line in lines)
