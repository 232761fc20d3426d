"""GRPO and RLOO through TRL: what every stage has, and that what is learnt is what it should be."""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import numpy as np
import pytest
import torch

from pipelines.core.errors import Diverged, IncompatibleError, ModelError, RecipeError, Stopped
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.models import opening
from pipelines.trainers import trl as trl_bridge
from tests import tiny
from tests.covering import covering

pytest.importorskip("trl")
WORDS = tiny.WORDS
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
KEYS = {
    "grpo": "reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text, max_length: 4}",
    "rloo": "reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text, max_length: 4}",
}
SHORT = {
    "grpo": "num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6",
    "rloo": "num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6",
}
STAGES = list(KEYS)


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("prompts.jsonl", [{"text": text} for text in tiny.TEXTS]),):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def loaded(folder, stage, arguments="max_steps: 2", more="", architecture=DECODER, keys=None):
    words = f"{{stage: {stage}, {keys or KEYS[stage]}, arguments: {{{SHORT[stage]}, {arguments}}}{more}}}"
    return loads(
        f"name: x\nmodel: {{architecture: {architecture}}}\nlaunch: {{num_processes: 1}}\nstages:\n  - {words}\n",
        folder=folder,
    )


def refused(folder, *arguments, **keywords):
    with pytest.raises(RecipeError) as caught:
        loaded(folder, *arguments, **keywords)
    return str(caught.value)


def given_to(context, recipe, name, build=None, **fields):
    """A context whose model always begins alike."""

    def open_model(head, keep_base=None, **_):
        model = (build or (lambda: tiny.build("finery", head, family="decoder", max_position_embeddings=96)))()
        if keep_base is not None:
            model.save_pretrained(str(keep_base))
            model.name_or_path = str(keep_base)
        return model

    return context(name, stage_id=recipe.stages[0].id, recipe=recipe, open_model=open_model, **fields)


def trained(folder, context, events, stage, *arguments, name=None, fields=None, build=None, **keywords):
    recipe = loaded(folder, stage, *arguments, **keywords)
    given = given_to(context, recipe, name or stage, build, **(fields or {}))
    recipe.stages[0].run(given)
    return given, events(given), json.loads((given.folder / "metrics.json").read_text())


@pytest.mark.parametrize(("stage", "tuner"), covering(product(STAGES, ("full", "lora"))))
def test_a_stage_leaves_what_every_stage_leaves(folder, context, events, stage, tuner):
    given, told, metrics = trained(
        folder, context, events, stage, "max_steps: 2, logging_steps: 1, save_steps: 2", f", tuner: {tuner}"
    )
    kinds = [each["event"] for each in told]
    assert {"metric", "progress", "checkpoint"} <= set(kinds)
    logged = [each["metrics"] for each in told if each["event"] == "metric"]
    assert all(np.isfinite(each["loss"]) for each in logged)
    assert {
        "train_runtime",
        "train_samples_per_second",
        "trainable_parameters",
        "all_parameters",
        "peak_memory_bytes",
        "train_steps",
    } <= set(metrics)
    model = given.folder / "model"
    assert json.loads((model / "head.json").read_text())["kind"] == "causal_lm"
    assert not list(model.rglob("*.bin"))
    opened = opening.open_folder(model, Head("causal_lm"), 0, trained_head=True)  # itself again when TRL has left
    ids = torch.tensor([[5, 6, 7]])
    assert opened(input_ids=ids).logits.shape == (1, 3, opened.config.vocab_size)
    if tuner == "lora":
        assert (model / "adapter_model.safetensors").exists()
        assert not (model / "ref").exists()
        assert (given.folder / "base").exists()
        assert metrics["trainable_parameters"] < metrics["all_parameters"] / 2
    else:
        assert (model / "model.safetensors").exists()
        assert not (given.folder / "base").exists()
    assert not list(given.folder.rglob("README.md")) or tuner == "lora"  # PEFT writes one beside an adapter
    assert all(name in logged[0] for name in ("reward", "reward_std", "completions/mean_length"))
    shown = next(each for each in told if each["event"] == "sample" and each["what"] == "completions")["shown"]
    assert {"prompt", "completion", "reward"} == set(shown[0])
    assert shown[0]["prompt"].split()[0] in WORDS


@pytest.mark.parametrize(("stage", "tuner"), covering(product(STAGES, ("lora", "full"))))
def test_a_stopped_run_goes_on_from_its_checkpoint_to_the_same_weights(folder, context, events, stage, tuner):
    arguments, more = "max_steps: 3, logging_steps: 3, save_steps: 1, learning_rate: 1e-3", f", tuner: {tuner}"
    straight, told, _ = trained(folder, context, events, stage, arguments, more, name="straight")
    recipe = loaded(folder, stage, arguments, more)
    stop = StopSignal()
    given = given_to(context, recipe, "broken", stop=stop)
    seen = given.events.emit

    def stopping(event, **fields):
        stop.requested = stop.requested or (event == "checkpoint" and fields["step"] == 1)
        return seen(event, **fields)

    given.events.emit = stopping
    with pytest.raises(Stopped, match="its checkpoint is saved"):
        recipe.stages[0].run(given)
    again = given_to(context, recipe, "broken")
    recipe.stages[0].run(again)
    name = "adapter_model.safetensors" if tuner == "lora" else "model.safetensors"
    assert (again.folder / "model" / name).read_bytes() == (straight.folder / "model" / name).read_bytes()
    wanted = [each["metrics"]["loss"] for each in told if each["event"] == "metric"]
    found = [each["metrics"]["loss"] for each in events(again) if each["event"] == "metric"]
    assert found[-1] == wanted[-1]


@pytest.mark.parametrize("stage", ["grpo", pytest.param("rloo", marks=pytest.mark.long)])
def test_the_reward_rises(folder, context, events, stage):
    keys = KEYS[stage].replace("[good]", "[good, film, the]")
    arguments = "max_steps: 12, logging_steps: 3, learning_rate: 2e-2, beta: 0.01, gradient_accumulation_steps: 2"
    _, told, _ = trained(folder, context, events, stage, arguments, keys=keys)
    rewards = [each["metrics"]["reward"] for each in told if each["event"] == "metric"]
    assert rewards[-1] > rewards[0] + 0.1


def test_a_loss_that_is_no_number_ends_the_stage(folder, context, events):
    with pytest.raises(Diverged):
        trained(folder, context, events, "grpo", "max_steps: 6, learning_rate: 1e12, max_grad_norm: 0")


def test_nothing_is_reported_to_anybody(folder, context, events, monkeypatch):
    from trl.trainer import base_trainer

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **_: pytest.fail("telemetry was sent"))
    trained(folder, context, events, "rloo", "max_steps: 1")


def test_a_head_that_is_no_single_matrix_is_refused():
    from trl.trainer.utils import add_fused_lm_head

    model = tiny.build("gpt2", Head("causal_lm"))
    add_fused_lm_head(model)
    trl_bridge.refuse_other_heads(model, 1.0)
    plain = model.lm_head.forward
    model.lm_head.forward = lambda hidden: plain(hidden) * 4.0
    with pytest.raises(IncompatibleError, match="single matrix"):
        trl_bridge.refuse_other_heads(model, 1.0)


@pytest.mark.parametrize(
    ("stage", "arguments", "more", "sentence"),
    [
        ("rloo", "max_steps: 1", ", tuner: prefix", "is prefix, but rloo is trained by TRL, which knows full and lora"),
        ("grpo", "max_steps: 1", ", tuner: ia3", "is ia3, but grpo is trained by TRL"),
        ("grpo", "max_steps: 1", ", tuner: {name: lora, bias: all}", "changes weights of the base"),
        ("rloo", "eval_strategy: epoch", "", "no rows are set aside"),
        ("grpo", "gradient_accumulation_steps: 1, loss_type: ppo", "", "must be one of dapo"),
        ("rloo", "beta: -1", "", "must be at least 0"),
        ("grpo", "top_p: 1.5", "", "must be at most 1"),
        ("rloo", "betta: 1", "", "Did you mean 'beta'?"),
    ],
)
def test_what_trl_cannot_do_is_said_before_anything_loads(folder, stage, arguments, more, sentence):
    assert sentence in refused(folder, stage, arguments, more)


@pytest.mark.parametrize("stage", STAGES)
def test_numbers_that_are_not_given_are_trls_own(folder, stage):
    import trl

    declared = loaded(folder, stage).stages[0].arguments
    own = {field.name: field.default for field in dataclasses.fields(getattr(trl, f"{stage.upper()}Config"))}
    differ = {
        name for name in {*declared.own(), "learning_rate"} & own.keys() if getattr(type(declared)(), name) != own[name]
    }
    assert differ == {"max_completion_length"}


def test_groups_must_fill_the_step(folder):
    text = "{stage: grpo, reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text}, arguments: {num_generations: 3, max_completion_length: 8}}"
    with pytest.raises(RecipeError, match="does not divide the 8 completions of a step"):
        loads(f"name: x\nmodel: {{architecture: {DECODER}}}\nstages:\n  - {text}\n", folder=folder)
    three = f"name: x\nmodel: {{architecture: {DECODER}}}\nlaunch: {{num_processes: 3}}\nstages:\n  - {text}\n"
    assert loads(three, folder=folder).stages[0].arguments.num_generations == 3
    with pytest.raises(RecipeError, match="make it 2 or more"):
        loads(
            f"name: x\nmodel: {{architecture: {DECODER}}}\nstages:\n  - {text.replace('generations: 3', 'generations: 1')}\n",
            folder=folder,
        )


def test_completions_must_fit_behind_the_prompts(folder):
    assert "max_position_embeddings 96" in refused(
        folder,
        "grpo",
        "max_steps: 1",
        architecture=DECODER,
        keys=KEYS["grpo"].replace("max_length: 4", "max_length: 92"),
    )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("shape", ["{preset: bert-tiny}", "{family: encoder-decoder}"])
def test_only_decoders_are_trained_by_trl(folder, stage, shape):
    assert "which TRL trains for decoders alone" in refused(folder, stage, architecture=shape)


def test_an_encoder_decoder_from_a_checkpoint_is_refused_when_it_is_opened(folder, context):
    (folder / "bart").mkdir()
    text = f"name: x\nmodel: {{checkpoint: {folder / 'bart'}}}\ntokenizer: {{train: wordpiece}}\nstages:\n  - {{stage: grpo, {KEYS['grpo']}}}\n"
    recipe = loads(text, folder=folder)  # nobody can tell yet what the folder will hold
    tiny.build("bart", Head("seq2seq_lm")).save_pretrained(str(folder / "bart"))
    with pytest.raises(ModelError, match="which TRL trains for decoders alone"):
        recipe.stages[0].run(given_to(context, recipe, "grpo"))
