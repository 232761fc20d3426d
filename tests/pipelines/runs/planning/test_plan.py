"""A plan's numbers against built models, live trainers and arithmetic by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.network import AllReduce, NetworkMeasurement, keep_measurement
from pipelines.runs.hardware import Device, gpu
from pipelines.runs.planning import model_size
from pipelines.runs.planning import plan as planning
from pipelines.runs.planning.plan import plan

CPU = Device("2 CPU cores", "cpu", 2, "no", {"no": 1e9, "bf16": 2e9})
ROWS = 57

RECIPE = """
name: small
model:
  architecture: {preset: bert-tiny, position: sinusoidal, norm_position: pre}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - stage: pretrain
    datasets: [{path: text.txt}]
    arguments: {max_steps: 10, per_device_train_batch_size: 4}
  - stage: supervised
    id: tuned
    task: {kind: classification, columns: [text], label: label, labels: [a, b, c], train: rows.csv, validation: rows.csv}
    tuner: {name: lora, r: 4}
    max_length: 32
    arguments: {num_train_epochs: 2}
  - {stage: evaluate}
"""

LONG = " of more words than are read" * 5
"""Texts of more tokens than any max_length here: all are counted in full."""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "text.txt").write_text("A sentence of some words.\n\n" * 400)
    texts = [f"row {n}{LONG}" for n in range(ROWS)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{t},{'abc'[n % 3]}\n" for n, t in enumerate(texts)))
    return tmp_path


PRETRAIN = RECIPE[RECIPE.index("  - stage: pretrain") : RECIPE.index("  - stage: supervised")]


def planned(folder, *overrides, text=RECIPE, **keywords):
    return plan(loads(text, folder=folder, overrides=overrides), device=CPU, **keywords)


def built(head: Head, tuner=None, **words):
    from pipelines.models.opening import build

    class Tokenizer:
        pad_token_id, bos_token_id, eos_token_id, cls_token_id, sep_token_id = 0, None, None, None, None

        def __len__(self) -> int:
            return 1000

    model = build({"model_type": "finery", **words}, head, Tokenizer(), 0)
    return model if tuner is None else tuner.apply(model)


def weights(model, only_learning=False) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad or not only_learning)


def test_parameters_are_those_of_the_models_that_the_stages_build(folder):
    from pipelines.core.architecture_fields import resolve
    from pipelines.tuners.lora import LoRA

    words = resolve({"preset": "bert-tiny", "position": "sinusoidal", "norm_position": "pre", "vocab_size": 1000})
    pretrain, tuned, _ = planned(folder).stages
    model = built(Head("masked_lm"), **words)
    assert pretrain.parameters["total"] == pretrain.all_parameters == pretrain.trainable_parameters == weights(model)
    head = Head("sequence_classification", ("a", "b", "c"))
    assert tuned.parameters["total"] == weights(built(head, **words))
    adapted = built(head, LoRA(r=4), **words)
    assert tuned.all_parameters == weights(adapted)
    assert tuned.trainable_parameters == weights(adapted, only_learning=True)


@pytest.mark.parametrize("tuner", ["{name: lora, r: 4}", "full"])
def test_a_head_on_the_mean_has_no_pooler(folder, tmp_path, tuner):
    """Of our own model, and of a BERT that moves into our family: as many weights, as many that learn."""
    from transformers import BertConfig, BertForMaskedLM

    from pipelines.models.opening import open_folder

    config = BertConfig(
        vocab_size=1000, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    pooled = ("stages.tuned.pooling=mean", f"stages.tuned.tuner={tuner}")
    head = Head("sequence_classification", ("a", "b", "c"), pooling="mean")
    moved = open_folder(tmp_path / "bert", head, seed=0)
    block = loads(RECIPE, folder=folder, overrides=pooled).stage("tuned").tuner
    assert moved.finery_new_modules == ["classifier"]
    tuned = block.apply(moved)
    start = f"model={{checkpoint: {tmp_path / 'bert'}}}", "tokenizer=null", "stages.pretrain=null"
    stage = planned(folder, *start, *pooled).stages[0]
    assert (stage.all_parameters, stage.trainable_parameters) == (weights(tuned), weights(tuned, only_learning=True))
    with_pooler, without = planned(folder).stages[1], planned(folder, *pooled).stages[1]
    dim = 128  # bert-tiny's
    assert with_pooler.parameters["total"] - without.parameters["total"] == dim * dim + dim


def test_modules_that_learn_whole_are_those_the_opened_checkpoint_lacks(folder, tmp_path):
    """The plan's rule for a stage after pretraining, against what loading the pretrained folder reports."""
    from pipelines.models.opening import open_folder

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    built(Head("masked_lm"), **small).save_pretrained(tmp_path / "pretrained")
    head = Head("sequence_classification", ("a", "b", "c"))
    lacking = open_folder(tmp_path / "pretrained", head, seed=0).finery_new_modules
    recipe = loads(RECIPE, folder=folder)
    planner = planning.Planner(recipe, CPU, 1, "single", "no", 1e9)
    assert sorted(planner._fresh(recipe.stage("tuned"), head)) == sorted(lacking)


@pytest.mark.parametrize(
    ("arguments", "processes", "steps", "per_step"),
    [
        ("{num_train_epochs: 2}", 1, 16, 8),  # ceil(57 / 8) = 8 batches, twice
        ("{num_train_epochs: 2, gradient_accumulation_steps: 3}", 1, 6, 24),  # 8 batches are 3 steps
        ("{num_train_epochs: 0.5}", 1, 4, 8),
        ("{num_train_epochs: 1, per_device_train_batch_size: 4}", 2, 8, 8),  # 57 / (4 * 2) = 7.1
        ("{num_train_epochs: 1, global_batch_size: 16}", 2, 4, 16),  # 57 / 16 = 3.6
        ("{num_train_epochs: 1, global_batch_size: 16, per_device_train_batch_size: 4}", 2, 4, 16),
        ("{num_train_epochs: 1, eval_strategy: epoch}", 1, 7, 8),  # 57 - round(5.7) = 51 rows
        ("{max_steps: 5}", 1, 5, 8),
    ],
)
def test_steps_by_hand(folder, arguments, processes, steps, per_step):
    found = planned(folder, f"stages.tuned.arguments={arguments}", f"launch.num_processes={processes}").stages[1]
    assert (found.steps, found.examples_per_step) == (steps, per_step)


@pytest.mark.parametrize(
    "words", [{"num_train_epochs": 2}, {"num_train_epochs": 1.5, "gradient_accumulation_steps": 3}]
)
def test_steps_are_those_of_the_live_trainer(words, tmp_path):
    import torch
    from transformers import Trainer, TrainingArguments

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, value, labels=None):
            return {"loss": (self.weight - value.float()).pow(2).mean()}

    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, **words
    )
    trainer = Trainer(Tiny(), arguments, train_dataset=[{"value": n} for n in range(ROWS)])
    trainer.train()
    accumulated = words.get("gradient_accumulation_steps", 1)
    assert planning._steps(words, ROWS, 8, accumulated) == trainer.state.global_step


def test_operations_and_time_of_a_stage_by_hand(folder):
    """Ten steps of four blocks, three forward passes each, at 2 GFLOP/s (two cores of 1 GFLOP/s)."""
    from pipelines.architectures.arithmetic import forward_flops
    from pipelines.core.architecture_fields import resolve

    words = resolve({"preset": "bert-tiny", "position": "sinusoidal", "norm_position": "pre", "vocab_size": 1000})
    words.pop("model_type")
    found = planned(folder)
    pretrain, tuned, evaluate = found.stages
    forward = forward_flops(words, "masked_lm", 128, predicted_tokens=round(0.15 * 128))["total"]
    assert pretrain.tokens == 10 * 4 * 128
    assert pretrain.flops == 10 * 4 * 3 * forward
    assert pretrain.seconds == pytest.approx(pretrain.flops / 2e9 + 10 * 0.01)  # and a hundredth of a second a step
    assert tuned.tokens == 2 * ROWS * 32  # the last batch of each epoch holds one row
    # LoRA of rank 4: a forward pass and the gradients of its inputs; two layers of four square matrices and two others
    updates = 2 * 2 * 4 * (4 * (128 + 128) + 2 * (128 + 512))
    forward = forward_flops(words, "sequence_classification", 32, num_labels=3)["total"]
    assert tuned.flops == 2 * ROWS * (2 * forward + 3 * updates * 32)
    assert evaluate.tokens == ROWS * 32  # as long as the stage that trained the task
    assert evaluate.flops == ROWS * forward_flops(words, "sequence_classification", 32, num_labels=3)["total"]
    assert found.seconds == pytest.approx(sum(stage.flops for stage in found.stages) / 2e9 + (10 + 16) * 0.01)


def test_a_frozen_body_is_asked_once_for_each_row(folder):
    """Two epochs of the head alone: the operations of one, but for those of the head's own weights."""
    frozen = [f"stages.tuned.{key}" for key in ("tuner=last_layer", "arguments.num_train_epochs=1")]
    once, twice = planned(folder, *frozen).stages[1], planned(folder, frozen[0]).stages[1]
    assert once.tokens * 2 == twice.tokens
    assert once.flops < twice.flops < 1.1 * once.flops
    step = planned(folder, frozen[0], "stages.tuned.arguments={max_steps: 1}").stages[1]
    assert step.flops * ROWS == pytest.approx(once.flops * 8)  # of a step of eight rows all are new


def test_a_frozen_body_of_two_stacks_is_asked_in_every_step(folder):
    frozen = ["model.architecture={preset: t5-tiny}", "stages.tuned.tuner=last_layer"]
    text = RECIPE.replace(PRETRAIN, "")
    once = planned(folder, *frozen, "stages.tuned.arguments.num_train_epochs=1", text=text).stages[0]
    twice = planned(folder, *frozen, "stages.tuned.arguments.num_train_epochs=2", text=text).stages[0]
    assert twice.flops == 2 * once.flops


def test_a_given_rate_replaces_the_assumed_one(folder):
    found = planned(folder, flops_per_second=5e9)
    assert found.rate == "as given"
    assert found.stages[2].seconds == found.stages[2].flops / 5e9


@pytest.mark.parametrize("setting", ["torch_compile=true", "activation_checkpointing=true"])
def test_a_compiled_or_recomputed_last_layer_is_counted_whole(folder, setting, monkeypatch):
    def activations(*settings):
        return planned(folder, *settings).stages[0].memory.activations

    plain, other = activations(), activations(f"stages.pretrain.arguments.{setting}")
    monkeypatch.setattr("pipelines.runs.planning.plan.Planner._cuts", lambda *given: False)
    assert activations() > plain
    assert activations(f"stages.pretrain.arguments.{setting}") == other


def test_recomputing_activations_costs_a_forward_pass_and_saves_memory(folder):
    plain = planned(folder).stages[0]
    recomputed = planned(folder, "stages.pretrain.arguments.gradient_checkpointing=true").stages[0]
    assert recomputed.flops * 3 == plain.flops * 4
    assert recomputed.memory.activations < plain.memory.activations


def test_scores_of_long_blocks_are_counted_where_they_are_kept(folder):
    words = (
        "{preset: gpt-tiny, max_position_embeddings: 1024, hidden_dropout_prob: 0.0, attention_probs_dropout_prob: %s}"
    )
    long = ("stages.pretrain.block_size=1024", "stages.pretrain.objective=causal_lm")
    one = "stages.pretrain.arguments.per_device_train_batch_size=1"

    def activations(dropout, *settings):
        shape = f"model.architecture={words % dropout}"
        return planned(folder, shape, *long, one, *settings, text=RECIPE).stages[0].memory.activations

    scores = 4 * 1024 * 1024 * 4 * 4  # heads, pairs, layers, bytes
    fused, eager = activations(0.0), activations(0.0, "stages.pretrain.arguments.torch_compile=true")
    assert eager - fused > 0.9 * scores
    assert fused < scores
    assert 1.4 * scores < activations(0.1) - fused < 1.7 * scores  # chances, and half as many bits of dropout


def test_long_texts_are_counted_in_parts_on_one_processor(folder, monkeypatch):
    """As the trainer divides them; compiled steps and several processes take the batch whole."""

    def memory(each=32, *settings):
        arguments = (
            f"{{max_steps: 10, per_device_train_batch_size: {each}, global_batch_size: 32, {', '.join(settings)}}}"
        )
        overrides = ("stages.pretrain.block_size=512", f"stages.pretrain.arguments={arguments}")
        return planned(folder, *overrides, text=RECIPE).stages[0].memory

    whole = memory(32, "torch_compile: true")
    divided = memory()
    alone = memory(16)  # of two heads with 512² scores of 4 bytes: 2^25
    assert (divided.activations, divided.peak) == (alone.activations, alone.peak)
    assert divided.activations < 0.6 * whole.activations
    monkeypatch.setattr("pipelines.core.costs.TENSOR_KEPT", 1 << 21)
    assert memory().activations < 0.1 * alone.activations


def test_a_policy_whose_dropout_is_off_is_counted_without_it(folder):
    (folder / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 40)
    preferred = "  - {stage: dpo, datasets: [{path: pairs.jsonl}], max_length: 64, arguments: {%s}}\n"
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace("bert-tiny, position: sinusoidal", "gpt-tiny")
    text = text.replace("datasets:", "objective: causal_lm\n    datasets:", 1)
    found = {}
    for setting in ("disable_dropout: true", "disable_dropout: false"):
        for chance in ("0.1", "0.0"):
            words = [f"model.architecture.{name}_dropout_prob={chance}" for name in ("hidden", "attention_probs")]
            stage = planned(folder, *words, text=text + preferred % setting).stages[1]
            found[setting, chance] = stage.memory.activations
    assert found["disable_dropout: true", "0.1"] == found["disable_dropout: true", "0.0"]
    assert found["disable_dropout: false", "0.1"] > 1.1 * found["disable_dropout: false", "0.0"]
    assert found["disable_dropout: false", "0.0"] == found["disable_dropout: true", "0.0"]


def test_single_answers_of_kto_are_counted_once_and_pairs_twice(folder):
    (folder / "answers.jsonl").write_text('{"prompt": "a", "completion": "b", "label": true}\n' * 40)
    task = "{kind: preference, train: answers.jsonl%s}"
    kto = "  - {stage: kto, task: %s, max_length: 64, arguments: {global_batch_size: 8, num_train_epochs: 1}}\n"
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace("bert-tiny, position: sinusoidal", "gpt-tiny")
    text = text.replace("datasets:", "objective: causal_lm\n    datasets:", 1)
    steps = [
        planned(folder, text=text + kto % (task % said)).stages[1].steps
        for said in ("", ", format: prompt_completion_label")
    ]
    assert steps == [9, 5]  # of the 36 rows that are not held out


def test_a_gpu_is_one_process_each_and_keeps_no_attention_scores(folder):
    recipe = loads(RECIPE, folder=folder)
    found = plan(recipe, device=gpu("NVIDIA H100 80GB HBM3", 4))
    assert (found.processes, found.precision) == (4, "bf16")
    assert found.flops_per_second == pytest.approx(4 * 0.3 * 989e12)
    assert found.stages[0].examples_per_step == 16
    assert found.stages[0].memory.activations < planned(folder).stages[0].memory.activations
    assert plan(recipe, device=gpu("Tesla T4", 1)).precision == "no"
    assert found.beside is None


def test_epochs_over_text_are_counted_by_its_size(folder):
    found = planned(folder, "stages.pretrain.arguments={num_train_epochs: 1}").stages[0]
    blocks = (folder / "text.txt").stat().st_size // 4 // 128
    assert found.steps == -(-blocks // 8)
    assert any("about" in note for note in found.notes)


def test_why_documents_keep_a_mask_is_said(folder):
    apart = "stages.pretrain.cross_document_attention=false"
    quiet = "model.architecture.attention_probs_dropout_prob=0.0"
    masks = [note for note in planned(folder, apart).stages[0].notes if "masks" in note]
    assert masks == [
        "documents are kept apart by masks: finery_varlen drops no attention weights, but attention_probs_dropout_prob is 0.1"
    ]
    for words in ((), (apart, quiet)):
        assert not any("masks" in note for note in planned(folder, *words).stages[0].notes)


def test_what_cannot_be_known_is_said_and_not_made_up(folder):
    text = RECIPE.replace("path: text.txt", "path: builtin/python-docs").replace("max_steps: 10, ", "")
    found = planned(folder, text=text)
    pretrain = found.stages[0]
    assert pretrain.steps is pretrain.flops is pretrain.seconds is found.seconds is None
    assert any("max_steps" in note for note in pretrain.notes)
    assert pretrain.memory is not None
    assert pretrain.parameters["total"] > 0
    rest = found.stages[1].seconds + found.stages[2].seconds
    assert found.known_seconds == found.to_json()["known_seconds"] == pytest.approx(rest)
    assert found.lines()[-1] == f"in all about {planning.duration_text(rest)} without pretrain, see the notes"
    alone = planned(folder, text=text[: text.index("  - stage: supervised")])
    assert alone.lines()[-1] == "in all unknown, see the notes"


def test_class_names_that_are_still_in_the_data_are_not_looked_for(folder):
    found = planned(folder, text=RECIPE.replace("labels: [a, b, c], ", "")).stages[1]
    assert any("two are counted" in note for note in found.notes)
    assert found.parameters["head"] == 2 * 128 + 2


def test_a_plan_is_plain_data_and_lines(folder):
    found = planned(folder)
    data = json.loads(json.dumps(found.to_json()))
    assert [stage["id"] for stage in data["stages"]] == ["pretrain", "tuned", "evaluate"]
    assert data["stages"][1]["trainable_parameters"] == found.stages[1].trainable_parameters
    assert data["stages"][0]["memory"]["peak"] == found.stages[0].memory.peak
    assert data["growth"]["lengths"][0]["length"] == 128
    assert (
        data["growth"]["crossover"] == 6 * 128 + 1
    )  # the inner width is four times the hidden one: see test_arithmetic
    text = "\n".join(found.lines())
    assert f"{found.stages[0].parameters['total']:,}" in text
    assert "as given" not in text
    for part in ("embeddings", "attention", "feed_forward", "norms", "head"):
        assert f"{part} {found.stages[0].parameters[part]:,}" in " ".join(text.split())
    assert "attention costs more than feed-forward from 257 tokens on" in text
    assert "memory      " in text
    assert data["beside"] == found.beside
    assert found.beside is not None
    assert found.beside in text


def test_for_our_family_neither_torch_nor_transformers_is_imported(folder):
    (folder / "recipe.yaml").write_text(RECIPE)
    program = (
        "import sys; from pipelines.core.load import load; from pipelines.runs.planning.plan import plan; "
        f"found = plan(load({str(folder / 'recipe.yaml')!r})); print(found.lines()[0]); "
        "print([name for name in ('torch', 'transformers', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- every objective ------------------------------------------------------------------------------------------------

OBJECTIVES = [
    ("bert-tiny", "masked_lm", (64, 64, 10)),
    ("bert-tiny", "next_sentence", (64, 64, 10)),
    ("bert-tiny", "sentence_order", (64, 64, 10)),
    ("gpt-tiny", "causal_lm", (64, 64, 64)),
    ("gpt-tiny", "prefix_lm", (64, 64, 64)),
    ("t5-tiny", "span_corruption", None),
    ("transformer-tiny", "denoising", (64, 64, 64)),
]


@pytest.mark.parametrize(("preset", "objective", "passes"), OBJECTIVES)
def test_every_objective_has_its_plan(folder, preset, objective, passes):
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace(
        "position: sinusoidal, norm_position: pre", "vocab_size: 1000"
    )
    text = (
        text.replace("bert-tiny", preset)
        .replace("tokenizer: {train: wordpiece, vocab_size: 1000}\n", "")
        .replace(", vocab_size: 1000", "")
    )
    found = planned(folder, f"stages.pretrain.objective={objective}", "stages.pretrain.block_size=64", text=text)
    (stage,) = found.stages
    recipe = loads(text, folder=folder, overrides=[f"stages.pretrain.objective={objective}"])
    block = recipe.stages[0].objective
    length, target, predicted = passes or (*block.lengths(block.raw_length(64)), block.lengths(block.raw_length(64))[1])
    shape = planning.Planner(recipe, CPU, 1, "single", "no", 1e9).model
    assert stage.sequence_length == length
    assert stage.target_length == (target if shape.family == "encoder-decoder" else None)
    assert stage.flops == 10 * 4 * 3 * shape.forward(block.head, length, target, predicted)
    assert stage.parameters == shape.counts(block.head)
    assert stage.memory.peak > 16 * stage.all_parameters
    assert not any("cannot be built" in note for note in stage.notes)


@pytest.mark.parametrize("family", ["finery", "bert", "electra"])
def test_the_generator_of_replaced_token_detection_is_counted(folder, family):
    """Weights and operations of the built pair, by torch's counter; embeddings are one module."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pipelines.architectures.registration import register
    from pipelines.runs.planning.model_size import without_weights

    sizes = "hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 3, intermediate_size: 256"
    shape = "family: encoder" if family == "finery" else f"model_type: {family}"
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace(
        "{preset: bert-tiny, position: sinusoidal, norm_position: pre}", f"{{{shape}, {sizes}}}"
    )
    rtd = ["stages.pretrain.objective={name: replaced_token_detection, generator_size: 0.5}"]
    (stage,) = planned(folder, *rtd, "stages.pretrain.block_size=64", text=text).stages

    recipe = loads(text, folder=folder, overrides=rtd)
    objective, words = recipe.stages[0].objective, planning.Planner(recipe, CPU, 1, "single", "no", 1e9).model.config
    register()

    def build(head, **changed):
        return without_weights({"model_type": family, **words, **changed}, head)

    pair = objective.prepare(build(objective.head), None, build)
    assert stage.all_parameters == stage.trainable_parameters == weights(pair)
    assert sum(stage.parameters.values()) == 2 * stage.parameters["total"] == 2 * stage.all_parameters
    alone = sum(each.numel() for each in pair.discriminator.parameters())
    assert stage.parameters["generator"] == weights(pair) - alone

    counter, ids = FlopCounterMode(display=False), torch.zeros(1, 64, dtype=torch.long, device="meta")
    with counter, torch.no_grad():
        pair.generator(input_ids=ids)
        pair.discriminator(input_ids=ids)
    unnamed = 64 - 10
    forward = counter.get_total_flops() - 2 * pair.generator.get_output_embeddings().weight.numel() * unnamed
    assert stage.flops == pytest.approx(10 * 4 * 3 * forward, rel=0.01)
    one = planned(folder, "stages.pretrain.objective=masked_lm", "stages.pretrain.block_size=64", text=text).stages[0]
    assert one.memory.peak < stage.memory.peak < 2 * one.memory.peak


def test_text_taken_from_a_file_is_counted_in_what_an_example_takes(folder):
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace(
        "bert-tiny, position: sinusoidal, norm_position: pre", "t5-tiny"
    )
    words = ["stages.pretrain.objective=span_corruption", "stages.pretrain.arguments={num_train_epochs: 1}"]
    found = planned(folder, *words, text=text).stages[0]
    raw = loads(text, folder=folder, overrides=words).stages[0].objective.raw_length(128)
    assert raw > 128
    assert found.steps == -(-((folder / "text.txt").stat().st_size // 4 // raw) // 8)


def test_held_out_text_is_read_once(folder):
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace(
        "bert-tiny, position: sinusoidal, norm_position: pre", "gpt-tiny"
    )
    text += "  - {stage: evaluate, datasets: [{path: text.txt}]}\n"
    objective = "stages.pretrain.objective=causal_lm"
    found = planned(folder, objective, text=text)
    raw = loads(text, folder=folder, overrides=[objective]).stages[0].objective.raw_length(128)
    blocks = -(-((folder / "text.txt").stat().st_size / 4) // raw)
    evaluate = found.stages[1]
    assert evaluate.tokens == blocks * 128
    forward = found.stages[0].flops // (10 * 4 * 3)
    assert evaluate.flops == blocks * forward
    overlapping = planned(folder, objective, "stages.evaluate.stride=64", text=text).stages[1]
    assert overlapping.tokens == -(-((folder / "text.txt").stat().st_size / 4) // 64) * 128


def rewriting(more: str = "", beams: int = 1) -> str:
    """A recipe that learns to rewrite `pairs.csv`, for an epoch, and evaluates it."""
    task = "{kind: seq2seq, source: en, target: de, train: pairs.csv, validation: pairs.csv}"
    text = RECIPE[: RECIPE.index("  - stage: pretrain")].replace(
        "bert-tiny, position: sinusoidal, norm_position: pre", "transformer-tiny"
    )
    text += (
        f"  - {{stage: supervised, id: mine, task: {task}, max_length: 32{more}, arguments: {{num_train_epochs: 1}}}}\n"
    )
    return text + f"  - {{stage: evaluate, generation: {{num_beams: {beams}}}}}\n"


def test_a_task_of_rewriting_counts_sources_targets_and_beams(folder):
    (folder / "pairs.csv").write_text("en,de\n" + f"a dog{LONG},ein Hund{LONG}\n" * ROWS)
    text = rewriting(", max_target_length: 20", beams=3)
    trained, evaluated = planned(folder, text=text).stages
    assert (trained.sequence_length, trained.target_length, trained.tokens) == (32, 20, ROWS * 52)
    shape = planning.Planner(loads(text, folder=folder), CPU, 1, "single", "no", 1e9).model
    head = Head("seq2seq_lm")
    once, empty = shape.forward(head, 32, 20, 20), shape.forward(head, 32, 1, 1)
    assert trained.flops == 3 * ROWS * once
    assert evaluated.flops == ROWS * (once + 2 * (once - empty))


def test_mask_predict_reads_every_length_in_every_pass(folder):
    (folder / "pairs.csv").write_text("en,de\n" + f"a dog{LONG},ein Hund{LONG}\n" * ROWS)
    task = "{kind: seq2seq, source: en, target: de, train: pairs.csv, validation: pairs.csv}"
    words = "transformer-tiny, bidirectional_decoder: true, length_prediction: true"
    text = RECIPE[: RECIPE.index("  - stage: pretrain")].replace(
        "bert-tiny, position: sinusoidal, norm_position: pre", words
    )
    text += f"  - {{stage: supervised, id: mine, task: {task}, objective: mask_predict, max_length: 32, arguments: {{num_train_epochs: 1}}}}\n"
    text += "  - {stage: evaluate, generation: {iterations: 3, length_beam: 2, num_beams: 7}}\n"
    shape = planning.Planner(loads(text, folder=folder), CPU, 1, "single", "no", 1e9).model
    once, empty = (shape.forward(Head("seq2seq_lm"), 32, *each) for each in ((32, 32), (1, 1)))
    assert planned(folder, text=text).stages[1].flops == ROWS * (once + 5 * (once - empty))


# ---- models that are not ours ---------------------------------------------------------------------------------------

BERT = "{model_type: bert, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64}"
GPT2 = "{model_type: gpt2, n_embd: 32, n_layer: 2, n_head: 2}"


@pytest.mark.parametrize("architecture", [BERT, GPT2])
def test_a_foreign_model_is_counted_as_transformers_builds_it(folder, architecture):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from pipelines.core.architecture_fields import resolve
    from pipelines.core.yaml_positions import scalar
    from pipelines.models.opening import _fresh_modules
    from pipelines.tuners.lora import LoRA

    text = RECIPE.replace(PRETRAIN, "") if architecture == GPT2 else RECIPE  # a decoder has no masked-LM head
    found = next(
        stage
        for stage in planned(folder, f"model.architecture={architecture}", text=text).stages
        if stage.id == "tuned"
    )
    words = resolve(scalar(architecture))
    config = AutoConfig.for_model(words.pop("model_type"), **words, vocab_size=1000, num_labels=3)
    live = AutoModelForSequenceClassification.from_config(config)
    assert found.parameters["total"] == weights(live)
    assert found.parameters["embeddings"] == 1000 * 32
    live.finery_new_modules = _fresh_modules(live)
    adapted = LoRA(r=4).apply(live)
    assert found.all_parameters == weights(adapted)
    assert found.trainable_parameters == weights(adapted, only_learning=True)
    assert found.memory is not None


def test_a_foreign_model_is_built_and_counted_once_for_all_cells_of_a_study(folder, monkeypatch):
    text = RECIPE.replace("{preset: bert-tiny, position: sinusoidal, norm_position: pre}", BERT)
    model_size._foreign.cache_clear()
    counted, built_models = [], []
    plain, new = model_size.ForeignShape._counted, model_size.without_weights
    monkeypatch.setattr(
        model_size.ForeignShape, "_counted", lambda shape, *asked: counted.append(asked) or plain(shape, *asked)
    )
    monkeypatch.setattr(
        model_size, "without_weights", lambda words, head: built_models.append(head) or new(words, head)
    )
    first = planned(folder, "stages.tuned.tuner={name: full}", text=text)
    once = len(counted), len(built_models)
    assert once[0] == len(set(counted)) > 1
    assert once[1] == len(set(built_models)) > 1
    other = planned(folder, "stages.tuned.tuner={name: full}", "stages.tuned.arguments.learning_rate=1e-3", text=text)
    assert (len(counted), len(built_models)) == once
    assert other.stages == first.stages
    planned(folder, "stages.tuned.tuner={name: full}", text=text.replace("hidden_size: 32", "hidden_size: 48"))
    assert len(counted) == 2 * once[0]


T5 = "{model_type: t5, d_model: 32, num_layers: 2, num_heads: 2, d_kv: 16, d_ff: 64}"
BART = "{model_type: bart, d_model: 32, encoder_layers: 2, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2, encoder_ffn_dim: 64, decoder_ffn_dim: 64}"


@pytest.mark.parametrize(
    ("architecture", "objective"), [("BART", "causal_lm"), ("BART", "masked_lm"), ("BERT", "causal_lm")]
)
def test_a_head_that_our_families_do_not_have_is_planned_without_memory(folder, architecture, objective):
    shape = {"BART": BART, "BERT": BERT.replace("}", ", is_decoder: true}")}[architecture]
    text = RECIPE[: RECIPE.index("  - stage: supervised")].replace(
        "{preset: bert-tiny, position: sinusoidal, norm_position: pre}", shape
    )
    (found,) = planned(
        folder, f"stages.pretrain.objective={objective}", "stages.pretrain.block_size=16", text=text
    ).stages
    assert found.parameters["total"] > 0
    assert found.flops > 0
    assert found.memory is None
    assert "memory is unknown: no model of our own has these sizes and this head" in found.notes


@pytest.mark.parametrize("architecture", [T5, BART])
def test_a_foreign_encoder_decoder_is_counted_as_transformers_builds_it(architecture):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from pipelines.core.architecture_fields import resolve
    from pipelines.core.yaml_positions import scalar
    from pipelines.runs.planning.model_size import ForeignShape

    words = resolve(scalar(architecture)) | {"vocab_size": 500}
    shape = ForeignShape(words)
    head = Head("seq2seq_lm")
    live = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(words.pop("model_type"), **words), attn_implementation="eager"
    ).eval()
    assert shape.family == "encoder-decoder"
    assert shape.counts(head)["total"] == sum(each.numel() for each in live.parameters())
    tokens = torch.ones(1, 20, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        live(input_ids=tokens, decoder_input_ids=tokens[:, :9])
    assert shape.forward(head, 20, 9, 9) == counter.get_total_flops()
    assert shape.forward(head, 20, 9, 9) - shape.forward(head, 20, 9, 2) == 7 * 2 * 32 * 500
    found = shape.words(head)
    assert (found["hidden_size"], found["num_attention_heads"], found["intermediate_size"]) == (32, 2, 64)
    assert found["num_decoder_layers"] == (2 if architecture == T5 else 1)


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [
        ("bert", ["pretraining", "token_classification", "question_answering", "multiple_choice"]),
        ("gpt2", ["causal_lm", "token_classification", "question_answering"]),
        ("t5", ["sequence_classification", "token_classification", "question_answering"]),
        ("electra", ["masked_lm", "token_classification", "multiple_choice"]),
    ],
)
def test_every_head_of_a_foreign_model_has_its_costs(model_type, kinds):
    from pipelines.runs.planning.model_size import PLAIN_HEADS, ForeignShape

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64} if model_type == "t5" else sizes
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2} if model_type == "gpt2" else sizes
    shape = ForeignShape({"model_type": model_type, **sizes, "vocab_size": 100})
    for kind in kinds:
        head = Head(kind, ("a", "b", "c") if kind.endswith("classification") else ())
        assert shape.counts(head)["total"] > 0
        assert shape.forward(head, 16, 8, 4) > 2 * 16 * 32 * 32
        assert shape.words(head) is not None
        fresh = shape.lacking(head, PLAIN_HEADS[shape.family])
        assert bool(fresh) == (head.kind != PLAIN_HEADS[shape.family].kind)


def test_a_foreign_head_that_was_trained_before_is_not_fresh():
    from pipelines.runs.planning.model_size import ForeignShape

    words = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    shape = ForeignShape({"model_type": "bert", **words, "vocab_size": 100})
    head = Head("sequence_classification", ("a", "b"))
    assert shape.lacking(head, Head("masked_lm")) == ["bert.pooler.dense", "classifier"]
    assert shape.lacking(head, Head("pretraining")) == ["classifier"]
    assert shape.lacking(head, head) == []


def test_a_matrix_that_a_foreign_model_ties_is_counted_once(folder):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    live = BertForMaskedLM(BertConfig(**sizes, vocab_size=1000))
    found = planned(folder, f"model.architecture={BERT}").stages[0]
    assert found.parameters["total"] == found.trainable_parameters == weights(live)


def test_operations_of_a_foreign_model_are_about_those_that_torch_counts(folder):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertForSequenceClassification

    overrides = [f"model.architecture={BERT}", "stages.tuned.tuner=full"]
    found = planned(folder, *overrides).stages[1]
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=1000, num_labels=3
    )
    model = BertForSequenceClassification._from_config(config, attn_implementation="eager")
    words = torch.randint(0, 1000, (4, 32))
    with FlopCounterMode(display=False) as counter:
        model(words, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    assert found.flops / (found.tokens / 32) == pytest.approx(counter.get_total_flops() / 4, rel=0.1)


def test_a_head_that_the_model_cannot_have_is_noted(folder, monkeypatch):
    from transformers import AutoConfig, XLNetConfig

    config = XLNetConfig(d_model=32, n_layer=2, n_head=2)
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda source, **words: config)
    text = RECIPE.replace(
        "architecture: {preset: bert-tiny, position: sinusoidal, norm_position: pre}", "checkpoint: some/xlnet"
    )
    found = planned(folder, text=text)
    pretrain, tuned, _ = found.stages
    assert any("cannot be built" in note and "MaskedLM" in note for note in pretrain.notes)
    assert pretrain.flops is None
    assert tuned.flops is not None


def test_a_checkpoint_in_a_folder_is_read_from_its_config(folder):
    model = built(Head("masked_lm"), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    model.save_pretrained(folder / "checkpoint")
    text = RECIPE.replace(
        "architecture: {preset: bert-tiny, position: sinusoidal, norm_position: pre}",
        f"checkpoint: {folder / 'checkpoint'}",
    )
    assert planned(folder, text=text).stages[0].parameters["total"] == weights(model)


def test_a_checkpoint_that_is_not_there_is_noted(folder):
    text = RECIPE.replace(
        "architecture: {preset: bert-tiny, position: sinusoidal, norm_position: pre}", "checkpoint: nobody/nothing"
    )
    found = planned(folder, text=text)
    assert found.stages[0].steps == 10
    assert found.stages[0].parameters == {}
    assert any("nobody/nothing" in note for note in found.stages[0].notes)
    assert found.seconds is None


def test_a_pretrained_tokenizer_brings_its_vocabulary(folder):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({f"word{n}": n for n in range(321)}, unk_token="word0"))
    tokenizer.add_special_tokens(["[MASK]"])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    text = RECIPE.replace(
        "tokenizer: {train: wordpiece, vocab_size: 1000}", f"tokenizer: {{pretrained: {folder / 'tokenizer'}}}"
    )
    default = planned(folder, text=RECIPE.replace("tokenizer: {train: wordpiece, vocab_size: 1000}", ""))
    taken = planned(folder, text=text)
    assert default.stages[0].parameters["embeddings"] - taken.stages[0].parameters["embeddings"] == (8192 - 322) * 128


def test_only_tokens_that_get_logits_pay_for_a_foreign_output_matrix():
    """ELECTRA's embeddings are narrower than its layers: the matrix has 8 columns, not 32."""
    from pipelines.runs.planning.model_size import ForeignShape

    words = {"hidden_size": 32, "embedding_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape = ForeignShape({"model_type": "electra", **words, "vocab_size": 1000})
    head = Head("masked_lm")
    assert shape.forward(head, 16, 16, 16) - shape.forward(head, 16, 16, 4) == 12 * 2 * 8 * 1000


def test_a_model_that_cannot_run_without_numbers_is_estimated_by_its_weights():
    from pipelines.runs.planning.model_size import ForeignShape

    words = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    shape = ForeignShape({"model_type": "deberta-v2", **words, "vocab_size": 1000})
    head = Head("sequence_classification", ("a", "b"))
    counts = shape.counts(head)
    assert shape.forward(head, 16, 16, 0) == 2 * 16 * (counts["total"] - 1000 * 32)


LARGE = """
name: large
launch: {profile: auto, num_processes: 4, mixed_precision: no}
model: {architecture: {preset: gpt2, num_hidden_layers: 24}}
tokenizer: {train: byte_bpe, vocab_size: 20000}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: text.txt}], block_size: 64, arguments: {max_steps: 10, per_device_train_batch_size: 1}}
"""


def chosen(folder, free, *overrides, processes=4):
    return planning.profile_of(loads(LARGE, folder=folder, overrides=overrides), processes, "no", free)


def test_auto_takes_the_simplest_profile_that_fits_and_says_why(folder):
    assert chosen(folder, 1, processes=1) == ("single", "there is one process")
    profile, why = chosen(folder, 100 * 10**9)
    assert profile == "ddp"
    assert why.startswith("'pretrain' needs 3.")
    assert why.endswith("GB on each process with the whole model, of 85 GB that it may take")
    profile, why = chosen(folder, 3 * 10**9)
    assert profile == "fsdp2"
    assert "of 2.55 GB that it may take, and 1." in why
    assert why.endswith("GB with a part of it")
    assert chosen(folder, 10**9)[1].endswith("with a part of it, which is too much as well")
    profile, why = chosen(folder, 25 * 10**8, "stages.pretrain.arguments.optim=adafactor")
    assert profile == "ddp"
    assert "but cannot be divided: pretrain: is adafactor, which needs whole matrices" in why
    assert planning.profile_of(loads(LARGE, folder=folder, overrides=["launch.profile=fsdp2"]), 4, "no") == (
        "fsdp2",
        "",
    )


def test_auto_divides_no_cells(folder):
    profile, why = chosen(folder, 10**6, "model.architecture={family: rnn, stack: decoder}")
    assert profile == "ddp"
    assert "cannot be divided: pretrain: trains a model of the families rnn and cnn" in why


def test_a_plan_names_the_profile_and_counts_a_part_of_the_weights_under_fsdp2(folder):
    whole, divided = (
        plan(loads(LARGE, folder=folder, overrides=[f"launch.profile={profile}"]), device=CPU)
        for profile in ("ddp", "fsdp2")
    )
    assert divided.lines()[0] == "large on 2 CPU cores, 4 processes by fsdp2, precision no"
    before, after = whole.stages[0].memory, divided.stages[0].memory
    words = whole.stages[0].parameters["total"] * 4
    assert after.optimizer == before.optimizer // 4
    assert before.weights == words
    embeddings = whole.stages[0].parameters["embeddings"] * 4
    layer = (words - embeddings) / 24
    assert after.weights == pytest.approx(words / 4 + embeddings + 2 * layer, rel=0.01)
    assert after.peak < 0.6 * before.peak


def test_a_measured_network_tells_what_communication_adds(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FINERY_HOME", str(tmp_path / "home"))
    processes = ("launch.num_processes=2", "stages.pretrain.arguments.global_batch_size=8")
    text = RECIPE.replace("per_device_train_batch_size: 4", "global_batch_size: 8")
    before = planned(folder, *processes, text=text).stages[0]
    assert before.communication.bytes == before.trainable_parameters * 4  # 2 (n - 1) / n of the gradients
    measured = NetworkMeasurement(1, 2, "gloo", "cpu", "2026-01-01", (AllReduce(4, 2e-3), AllReduce(10**6, 1.0)))
    keep_measurement(measured)
    after = planned(folder, *processes, text=text).stages[0]
    added = before.communication.bytes / 1e6 + 1 * 1e-3  # a megabyte a second, one bucket of one hop
    assert after.seconds - before.seconds == pytest.approx(10 * added, rel=1e-3)


def test_how_often_each_source_of_a_mixture_is_read_is_told(folder):
    """A third of the examples come from the file; what is embedded has no size before it is made."""
    datasets = "[{path: text.txt, weight: 1, streaming: true}, {path: builtin/python-docs, weight: 2}]"
    made = planned(folder, f"stages.pretrain.datasets={datasets}", "stages.pretrain.arguments={max_steps: 800}")
    notes = made.stages[0].notes
    stage = made.stages[0]
    bytes_of_text = (folder / "text.txt").stat().st_size
    epochs = stage.steps * stage.examples_per_step * (stage.sequence_length - 2) * 4 / 3 / bytes_of_text
    assert f"about {epochs:.3g} epochs of text.txt, taking a token for 4 bytes" in notes
    assert any(note.startswith("how long builtin/python-docs is will be known") for note in notes)


# ---- texts that are shorter than max_length --------------------------------------------------------------------------


def test_short_texts_are_counted_by_their_mean_length_and_memory_by_the_longest(folder):
    """Operations of 20 tokens a text (80 bytes), of 40 where batches in random order are padded; never above the most."""
    full, tuned = planned(folder).stages[2], planned(folder).stages[1]
    (folder / "rows.csv").write_text(
        "text,label\n" + f"{'x' * 60},a\n{'y' * 100},b\n" * (ROWS // 2) + f"{'z' * 80},c\n"
    )
    short, by_length, evaluate = (planned(folder, "stages.tuned.max_length=64").stages[1], *planned(folder).stages[1:])
    assert (by_length.sequence_length, by_length.usual_length) == (32, 20)
    assert by_length.tokens == 2 * ROWS * 20
    assert evaluate.tokens == ROWS * 20
    assert by_length.memory == tuned.memory
    assert by_length.steps == tuned.steps
    assert by_length.flops / tuned.flops == pytest.approx(20 / 32, rel=0.05)
    assert evaluate.flops / full.flops == pytest.approx(20 / 32, rel=0.05)
    assert (short.usual_length, short.flops) == (20, by_length.flops)
    at_random = "stages.tuned.arguments={num_train_epochs: 2, train_sampling_strategy: random}"
    assert planned(folder, "stages.tuned.max_length=64", at_random).stages[1].usual_length == 40
    assert planned(folder, at_random).stages[1].usual_length == 32
    text = "\n".join(planned(folder).lines())
    assert "sequences of at most 32 tokens" in text
    assert "about 20 tokens a text of 'tuned'" in text


def test_sources_and_targets_have_mean_lengths_of_their_own(folder):
    (folder / "pairs.csv").write_text("en,de\n" + f"{'a' * 40},{'b' * 24}\n" * ROWS)
    text = rewriting(beams=1)
    trained, evaluated = planned(folder, text=text).stages
    shape = planning.Planner(loads(text, folder=folder), CPU, 1, "single", "no", 1e9).model
    each = shape.forward(Head("seq2seq_lm"), 10, 6, 6)
    assert (trained.target_length, trained.tokens, trained.flops) == (32, ROWS * 16, 3 * ROWS * each)
    assert evaluated.flops == ROWS * each


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_question_is_as_many_sequences_as_it_has_options(folder, kind):
    rows = [{"question": "q" * 40, "options": ["a", "b", "c"], "answer": "A"} for _ in range(ROWS)]
    options = "options"
    if kind == "csv":
        options = "[a, b, c]"
        (folder / "asked.csv").write_text("question,a,b,c,answer\n" + "which of these is,one,two,three,A\n" * ROWS)
    elif kind == "jsonl":
        (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), folder / "asked.parquet", row_group_size=20)
    file = f"asked.{kind}"
    task = f"{{kind: multiple_choice, options: {options}, train: {file}, validation: {file}}}"
    text = RECIPE[: RECIPE.index("  - stage: pretrain")]
    text += f"  - {{stage: supervised, id: mine, task: {task}, max_length: 32, arguments: {{num_train_epochs: 1}}}}\n"
    text += "  - {stage: evaluate}\n"
    foretold = planned(folder, text=text)
    trained, evaluated = foretold.stages
    assert f" of {trained.examples_per_step} × 3 sequences of at most 32 tokens" in "\n".join(foretold.lines())
    shape = planning.Planner(loads(text, folder=folder), CPU, 1, "single", "no", 1e9).model
    tokens = (20 if kind == "csv" else 41) // 4  # of a question and an option
    each = shape.forward(Head("multiple_choice"), tokens, tokens, 0)
    assert (trained.tokens, trained.flops) == (ROWS * 3 * tokens, ROWS * 3 * 3 * each)
    assert (evaluated.tokens, evaluated.flops) == (ROWS * 3 * tokens, ROWS * 3 * each)
    assert not any("takes as many as it has options" in note for note in (*trained.notes, *evaluated.notes))


def test_options_that_differ_in_number_are_told_as_not_counted(folder):
    rows = [{"question": "q", "options": ["a"] * (2 + n % 2), "answer": "A"} for n in range(ROWS)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = RECIPE[: RECIPE.index("  - stage: pretrain")]
    text += "  - {stage: supervised, task: {kind: multiple_choice, train: asked.jsonl}, max_length: 32}\n"
    (trained,) = planned(folder, text=text).stages
    assert any("takes as many as it has options" in note for note in trained.notes)


def test_answers_that_are_written_are_counted_in_evaluation(folder):
    task = "{kind: classification, columns: [text], label: label, train: rows.csv, validation: rows.csv}"
    text = RECIPE[: RECIPE.index("  - stage: pretrain")].replace(
        "bert-tiny, position: sinusoidal, norm_position: pre", "t5-tiny"
    )
    text += f"  - {{stage: multi_task, id: both, form: text_to_text, tasks: [{{id: one, task: {task}, max_length: 32}}, {{id: two, task: {task}, max_length: 32}}], arguments: {{num_train_epochs: 1}}}}\n"
    text += "  - {stage: evaluate, generation: {num_beams: 1}}\n"
    evaluated = planned(folder, text=text).stages[1]
    assert evaluated.tokens == 2 * ROWS * (32 + 1)  # a class of one letter
    assert evaluated.flops > 0
    assert not any("cannot be built" in note for note in evaluated.notes)
