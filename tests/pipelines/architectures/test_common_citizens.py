"""What transformers' users expect of any model, for every family in every design."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import pipelines.architectures as finery
from pipelines.architectures.modeling_finery import FineryPreTrainedModel
from tests.covering import covering

from .designs import (
    DESIGNED,
    DESIGNS,
    FAMILIES,
    HEADED,
    config_of,
    each_design,
    each_head,
    headed,
    language_model,
    padded,
)

each_family = pytest.mark.parametrize("family", FAMILIES)


def seen(family: str, logits: Tensor) -> Tensor:
    """The logits of the tokens that are not padding."""
    inputs = padded(family)
    return logits[inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()]


# --- one graph --------------------------------------------------------------------------------------------------------


MIXED = {
    "general": {"attention_scoring": "general"},
    "additive": {"position": "sinusoidal", "attention_scoring": "additive"},
    "window": DESIGNS["window"] | {"num_hidden_layers": 2, "attention_scoring": "cosine", "qk_norm": True},
    "alibi": DESIGNS["alibi"] | {"is_gated_act": True, "hidden_act": "silu"},
    "relative": DESIGNS["relative"],
    "linear": {"position": "none", "norm_position": "sandwich", "attention_pattern": "linear", "head_dim": 8},
}
"""Every position, scoring, pattern and place of a norm in six designs: what decides the operations of a graph."""


def one_layer(family: str, design: str, **overrides: object) -> nn.Module:
    torch.compiler.reset()
    fields = {"num_hidden_layers": 1, **overrides}
    if family == "encoder-decoder":
        fields["num_decoder_layers"] = fields["num_hidden_layers"]
    return language_model(family, design, **fields)


TRACED = (("decoder", "window"), ("encoder", "linear"), ("encoder-decoder", "relative"))
"""Each family, with what reads masks and numbers most: where a graph breaks first."""


@pytest.mark.parametrize(
    ("family", "mixed"),
    [
        pytest.param(*case, marks=() if case in TRACED else pytest.mark.long, id="-".join(case))
        for case in product(FAMILIES, MIXED)
    ],
)
@torch.no_grad()
def test_the_forward_pass_is_one_graph(family, mixed):
    """What fullgraph=True asks for, without waiting for code generation."""
    model, inputs = one_layer(family, "learned", **MIXED[mixed]).to(torch.bfloat16), padded(family)
    traced = torch.compile(model, fullgraph=True, backend="eager")(**inputs).logits
    torch.testing.assert_close(traced, model(**inputs).logits)


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f == "decoder" else pytest.mark.long) for f in FAMILIES]
)
def test_the_backward_pass_of_a_training_step_is_one_graph_too(family):
    model, inputs = one_layer(family, "modern"), padded(family)
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    gradients = []
    for run in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        model.zero_grad()
        run(**inputs, labels=labels).loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@each_family
@pytest.mark.parametrize("design", ["modern", "relative"])
@torch.no_grad()
def test_it_compiles_into_machine_code(family, design):
    torch.compiler.reset()
    model, inputs = language_model(family, design), padded(family)
    compiled = torch.compile(model, fullgraph=True)(**inputs).logits
    torch.testing.assert_close(seen(family, compiled), seen(family, model(**inputs).logits), rtol=1e-4, atol=1e-4)


# --- gradients --------------------------------------------------------------------------------------------------------


@each_design
def test_gradient_checkpointing_gives_the_same_gradients(family, design):
    model, inputs = language_model(family, design).train(), padded(family)
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])

    def gradients() -> dict[str, Tensor]:
        torch.manual_seed(5)  # dropout is on, and must be drawn again alike
        model.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        assert all(weight.grad is not None for weight in model.parameters())
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    plain = gradients()
    for reentrant in (True, False):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        assert model.is_activation_checkpointing
        for name, gradient in gradients().items():
            torch.testing.assert_close(gradient, plain[name], msg=lambda m, name=name: f"{name}: {m}")


@each_design
@torch.no_grad()
def test_eager_and_sdpa_agree(family, design):
    inputs = padded(family)
    eager, sdpa = (
        seen(family, language_model(family, design, attn_implementation=kernel)(**inputs).logits)
        for kernel in ("eager", "sdpa")
    )
    torch.testing.assert_close(sdpa, eager, rtol=0, atol=1e-5)


# --- types, sizes and places ------------------------------------------------------------------------------------------


@each_design
def test_it_computes_in_bfloat16_close_to_float32(family, design, tmp_path):
    model, inputs = language_model(family, design, initializer_range=0.05), padded(family)
    model.save_pretrained(tmp_path)
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    outputs = half(**inputs, labels=inputs.get("decoder_input_ids", inputs["input_ids"]))
    assert outputs.logits.dtype == torch.bfloat16
    outputs.loss.backward()
    assert {weight.grad.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert all(weight.grad.isfinite().all() for weight in half.parameters())
    exact, rounded = seen(family, model(**inputs).logits), seen(family, outputs.logits).float()
    assert (rounded - exact).abs().mean() < 0.05 * exact.abs().mean()


SPREAD = ("Model", "ForMaskedLM", "ForPreTraining", "ForCausalLM", "ForConditionalGeneration", "ForMultipleChoice")
"""Heads with and without tied weights, and the one that folds its inputs; others are one matrix on the same body."""
WORDED = ("learned", "modern", "relative")
"""Designs that differ in the output matrix: its bias, and the scale of what it reads."""


@pytest.mark.parametrize(
    ("family", "design", "tied"),
    covering(
        ((*case, tied) for case in DESIGNED for tied in (True, False)),
        ways=lambda family, design, tied: {family, design, tied} if design in WORDED else set(),
    ),
)
@torch.no_grad()
def test_a_resized_vocabulary_keeps_the_old_words_and_is_saved_so(family, design, tied, tmp_path):
    model, inputs = language_model(family, design, tie_word_embeddings=tied), padded(family)
    before = seen(family, model(**inputs).logits)
    model.resize_token_embeddings(70)
    assert model.config.vocab_size == 70
    after = seen(family, model(**inputs).logits)
    assert after.shape[-1] == 70
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    torch.testing.assert_close(after[:, :61], before)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(seen(family, again(**inputs).logits), after)
    new = torch.full_like(inputs["input_ids"], 69)
    assert model(**{**inputs, "input_ids": new}).logits.isfinite().all()


@pytest.mark.parametrize(
    ("family", "head"),
    covering(HEADED, ways=lambda family, head: {family, head} if head in SPREAD else set()),
)
@torch.no_grad()
def test_it_can_be_spread_over_devices(family, head, tmp_path):
    """On a host without accelerators the only other place is the disk: layers are fetched from there in turn."""
    model, inputs = headed(family, head), padded(family)
    if head == "ForMultipleChoice":
        inputs = {name: value[:, None].repeat(1, 2, 1) for name, value in inputs.items()}
    elif head not in ("Model", "ForConditionalGeneration"):
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    expected = model(**inputs)[0]
    model.save_pretrained(tmp_path / "model")
    automatic = type(model).from_pretrained(tmp_path / "model", device_map="auto").eval()
    torch.testing.assert_close(automatic(**inputs)[0], expected)

    largest = max(
        sum(weight.numel() * 4 for weight in module.parameters())
        for module in model.modules()
        if type(module).__name__.endswith("Layer")
    )
    spread = (
        type(model)
        .from_pretrained(
            tmp_path / "model", device_map="auto", max_memory={"cpu": 2 * largest}, offload_folder=tmp_path / "offload"
        )
        .eval()
    )
    assert "disk" in set(map(str, spread.hf_device_map.values()))
    torch.testing.assert_close(spread(**inputs)[0], expected)


@each_design
def test_a_model_born_without_memory_starts_like_one_born_with_it(family, design, monkeypatch):
    """Loading an empty checkpoint: every weight and buffer must then be initialised, not left as found."""
    initialise = FineryPreTrainedModel._init_weights

    def seeded(model: FineryPreTrainedModel, module: nn.Module) -> None:
        torch.default_generator.manual_seed(42)  # of the CPU alone: torch.manual_seed looks for other devices each time
        initialise(model, module)

    monkeypatch.setattr(FineryPreTrainedModel, "_init_weights", seeded)
    config = config_of(family, design)
    model_class = type(language_model(family, design))
    born, loaded = model_class(config), model_class.from_pretrained(None, config=config, state_dict={})
    tensors = [dict([*model.named_parameters(), *model.named_buffers()]) for model in (born, loaded)]
    assert tensors[0].keys() == tensors[1].keys()
    for name, tensor in tensors[0].items():
        assert torch.equal(tensors[1][name], tensor), name


@each_head
def test_the_tensor_parallel_plan_names_modules_that_exist(family, head):
    model = headed(family, head, "modern")
    names = {name for name, _ in model.named_modules()}
    plan = {pattern.replace("*", "0"): style for pattern, style in model.tp_plan.items()}
    assert plan
    assert set(plan) <= names
    cut = {name for name, style in plan.items() if style in ("colwise", "rowwise")}
    assert {name.rsplit(".", 1)[1] for name in cut} >= {"query", "key", "value", "output", "gate", "intermediate"}


TOGETHER = """
import sys, torch
import torch.distributed as dist
import pipelines.architectures as finery
head, folder = sys.argv[1:]
dist.init_process_group("gloo")
model = getattr(finery, head).from_pretrained(folder, tp_plan="auto").eval()
spread = [weight for weight in model.parameters() if hasattr(weight, "to_local")]
held = sum(weight.to_local().numel() for weight in spread), sum(weight.numel() for weight in spread)
with torch.no_grad():
    logits = model(**torch.load(folder + "/inputs.pt")).logits
if dist.get_rank() == 0:
    torch.save({"logits": getattr(logits, "full_tensor", lambda: logits)(), "held": held}, folder + "/found.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
@each_family
@torch.no_grad()
def test_two_processes_that_hold_half_of_the_matrices_each_compute_the_same(family, repository, tmp_path):
    model, inputs = language_model(family, "modern"), padded(family)
    model.save_pretrained(tmp_path)
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "together.py").write_text(TOGETHER)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "2",
            str(tmp_path / "together.py"),
            type(model).__name__,
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    here, everywhere = found["held"]
    assert 0 < here <= 0.6 * everywhere
    torch.testing.assert_close(seen(family, found["logits"]), seen(family, model(**inputs).logits), rtol=0, atol=1e-5)


def test_only_heads_that_predict_the_next_word_can_generate():
    able = {(family, head) for family, head in HEADED if getattr(finery, f"Finery{head}").can_generate()}
    assert able == {
        ("decoder", "ForCausalLM"),
        ("decoder", "ForCausalLMWithValueHead"),
        ("encoder-decoder", "ForConditionalGeneration"),
    }
