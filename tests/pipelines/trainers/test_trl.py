"""KTO, GRPO and RLOO through TRL: what every stage has, and that what is learnt is what it should be."""

from __future__ import annotations

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
from pipelines.trainers.kto import encoded
from tests import tiny
from tests.covering import covering

pytest.importorskip("trl")
WORDS = tiny.WORDS
PAIRS = [
    {"prompt": f"the {one} saw", "chosen": f" a {other} film", "rejected": f" a {one} book"}
    for one, other in zip(WORDS, WORDS[5:], strict=False)
]
SINGLE = [
    {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
    for row in PAIRS
    for side in ("chosen", "rejected")
]
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
KEYS = {
    "kto": "task: {kind: preference, train: pairs.jsonl}, max_length: 32",
    "grpo": "reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text, max_length: 4}",
    "rloo": "reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text, max_length: 4}",
}
SHORT = {
    "kto": "per_device_train_batch_size: 4",
    "grpo": "num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6",
    "rloo": "num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6",
}
STAGES = list(KEYS)


@pytest.fixture
def folder(tmp_path):
    for name, rows in (
        ("pairs.jsonl", PAIRS),
        ("single.jsonl", SINGLE),
        ("prompts.jsonl", [{"text": text} for text in tiny.TEXTS]),
    ):
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
        folder, context, events, stage, "max_steps: 3, logging_steps: 1, save_steps: 2", f", tuner: {tuner}"
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
    if stage != "kto":
        assert all(name in logged[0] for name in ("reward", "reward_std", "completions/mean_length"))
        shown = next(each for each in told if each["event"] == "sample" and each["what"] == "completions")["shown"]
        assert {"prompt", "completion", "reward"} == set(shown[0])
        assert shown[0]["prompt"].split()[0] in WORDS


@pytest.mark.parametrize(("stage", "tuner"), covering(product(STAGES, ("lora", "full"))))
def test_a_stopped_run_goes_on_from_its_checkpoint_to_the_same_weights(folder, context, events, stage, tuner):
    arguments, more = "max_steps: 4, logging_steps: 3, save_steps: 2, learning_rate: 1e-3", f", tuner: {tuner}"
    straight, told, _ = trained(folder, context, events, stage, arguments, more, name="straight")
    recipe = loaded(folder, stage, arguments, more)
    stop = StopSignal()
    given = given_to(context, recipe, "broken", stop=stop)
    seen = given.events.emit

    def stopping(event, **fields):
        stop.requested = stop.requested or (event == "checkpoint" and fields["step"] == 2)
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


def test_wanted_answers_become_likelier(folder, context, events):
    _, told, _ = trained(folder, context, events, "kto", "max_steps: 16, logging_steps: 8, learning_rate: 5e-3")
    logged = [each["metrics"] for each in told if each["event"] == "metric"]
    assert logged[-1]["rewards/margins"] > logged[0]["rewards/margins"]
    assert logged[-1]["rewards/margins"] > 0.02


@pytest.mark.parametrize("stage", ["grpo", pytest.param("rloo", marks=pytest.mark.long)])
def test_the_reward_rises(folder, context, events, stage):
    keys = KEYS[stage].replace("[good]", "[good, film, the]")
    arguments = "max_steps: 24, logging_steps: 6, learning_rate: 1e-2, beta: 0.01, gradient_accumulation_steps: 2"
    _, told, _ = trained(folder, context, events, stage, arguments, keys=keys)
    rewards = [each["metrics"]["reward"] for each in told if each["event"] == "metric"]
    assert rewards[-1] > rewards[0] + 0.1


def test_single_answers_are_learnt_as_they_are_and_pairs_in_two(folder, context):
    rows = {}
    for name in ("pairs", "single"):
        recipe = loaded(folder, "kto", keys=f"datasets: [{{path: {name}.jsonl}}], max_length: 32")
        given = given_to(context, recipe, name)
        model, tokenizer = given.open_model(Head("causal_lm")), given.open_tokenizer()
        rows[name] = encoded(recipe.stages[0], given, model, tokenizer, None, 4)
    key = lambda row: (row["prompt_ids"], row["completion_ids"], row["label"])  # noqa: E731
    assert sorted(map(key, rows["pairs"])) == sorted(map(key, rows["single"]))
    assert len(rows["single"]) == len(SINGLE)


def test_answers_end_with_the_end_of_texts_and_prompts_do_not(folder, context):
    recipe = loaded(folder, "kto")
    given = given_to(context, recipe, "kto")
    tokenizer = given.open_tokenizer()
    rows = encoded(recipe.stages[0], given, given.open_model(Head("causal_lm")), tokenizer, None, 4)
    assert all(row["completion_ids"][-1] == tokenizer.sep_token_id for row in rows)
    assert not any(tokenizer.sep_token_id in row["prompt_ids"] for row in rows)


def test_the_other_answer_of_the_kl_is_the_neighbours(folder, context):
    recipe = loaded(folder, "kto")
    given = given_to(context, recipe, "kto")
    rows = encoded(recipe.stages[0], given, given.open_model(Head("causal_lm")), given.open_tokenizer(), None, 4)
    for start in range(0, len(rows), 4):
        together = rows[start : start + 4]
        assert [row["KL_completion_ids"] for row in together] == [
            row["completion_ids"] for row in (together[-1], *together[:-1])
        ]


def test_trl_prepares_single_rows_as_we_do(folder, context):
    """TRL's own preparation of plain texts, with a tokenizer that adds nothing, gives the same tokens."""
    import copy

    import trl
    from datasets import Dataset

    recipe = loaded(folder, "kto", keys="datasets: [{path: single.jsonl}], max_length: 32")
    given = given_to(context, recipe, "kto")
    tokenizer = copy.deepcopy(given.open_tokenizer())
    rows = encoded(recipe.stages[0], given, given.open_model(Head("causal_lm")), tokenizer, None, None)
    tokenizer.eos_token, tokenizer.backend_tokenizer.post_processor = tokenizer.sep_token, None
    arguments = trl.KTOConfig(
        output_dir=str(folder / "trl"),
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        per_device_train_batch_size=4,
        report_to="none",
    )
    model = tiny.build("gpt2", Head("causal_lm"))
    trainer = trl.KTOTrainer(
        model=model,
        ref_model=copy.deepcopy(model),
        args=arguments,
        train_dataset=Dataset.from_list(SINGLE),
        processing_class=tokenizer,
    )
    key = lambda row: (row["prompt_ids"], row["completion_ids"], row["label"])  # noqa: E731
    assert sorted(map(key, trainer.train_dataset)) == sorted(map(key, rows))


def test_a_loss_that_is_no_number_ends_the_stage(folder, context, events):
    with pytest.raises(Diverged):
        trained(folder, context, events, "kto", "max_steps: 6, learning_rate: 1e12, max_grad_norm: 0")


def test_nothing_is_reported_to_anybody(folder, context, events, monkeypatch):
    from trl.trainer import base_trainer

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **_: pytest.fail("telemetry was sent"))
    trained(folder, context, events, "kto", "max_steps: 1")


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
        ("kto", "max_steps: 1", ", tuner: prefix", "is prefix, but kto is trained by TRL, which knows full and lora"),
        ("grpo", "max_steps: 1", ", tuner: ia3", "is ia3, but grpo is trained by TRL"),
        ("kto", "max_steps: 1", ", tuner: {name: lora, bias: all}", "changes weights of the base"),
        ("kto", "train_sampling_strategy: random", "", "is decided by KTO"),
        ("kto", "eval_strategy: epoch", "", "no rows are set aside"),
        ("kto", "precompute_ref_batch_size: 2", "", "is for precompute_ref_log_probs: true"),
        ("grpo", "gradient_accumulation_steps: 1, loss_type: ppo", "", "must be one of dapo"),
        ("rloo", "beta: -1", "", "must be at least 0"),
        ("grpo", "top_p: 1.5", "", "must be at most 1"),
        ("rloo", "betta: 1", "", "Did you mean 'beta'?"),
    ],
)
def test_what_trl_cannot_do_is_said_before_anything_loads(folder, stage, arguments, more, sentence):
    assert sentence in refused(folder, stage, arguments, more)


def test_groups_must_fill_the_step(folder):
    text = "{stage: grpo, reward: {name: keyword, words: [good]}, prompts: {path: prompts.jsonl, text: text}, arguments: {num_generations: 3, max_completion_length: 8}}"
    with pytest.raises(RecipeError, match="does not divide the 8 completions of a step"):
        loads(f"name: x\nmodel: {{architecture: {DECODER}}}\nstages:\n  - {text}\n", folder=folder)
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
    tiny.build("bart", Head("seq2seq_lm")).save_pretrained(str(folder / "bart"))
    text = f"name: x\nmodel: {{checkpoint: {folder / 'bart'}}}\ntokenizer: {{train: wordpiece}}\nstages:\n  - {{stage: kto, {KEYS['kto']}}}\n"
    recipe = loads(text, folder=folder)
    with pytest.raises(ModelError, match="which TRL trains for decoders alone"):
        recipe.stages[0].run(given_to(context, recipe, "kto"))
