"""The formulas of a stage's costs against models that are built and trained."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipelines import costs
from pipelines.architectures import FineryConfig, FineryForMaskedLM, FineryForSequenceClassification
from pipelines.architectures.arithmetic import forward_flops
from pipelines.trainers.losses import classification_loss, masked_token_loss
from pipelines.tuners.lora import LoRA

SHAPE = {
    "vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip
LABELS = 3


def build(head: str, **words):
    config = FineryConfig(**SHAPE, **words, num_labels=LABELS, problem_type="single_label_classification")
    kind = FineryForMaskedLM if head == "masked_lm" else FineryForSequenceClassification
    model = kind._from_config(config, attn_implementation="eager")
    model.finery_new_modules = [] if head == "masked_lm" else ["classifier", "model.pooler.dense"]
    return model


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification"])
def test_linear_layers_are_those_of_the_built_model(head):
    model = build(head)
    built = {
        (name, module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
    }
    assert {(each.name, each.inputs, each.outputs) for each in costs.linear_layers(SHAPE, head, LABELS)} == built


TUNERS = [
    {},
    {"r": 3},
    {"target_modules": ("query", "value")},
    {"target_modules": ("feed_forward.output", "query"), "use_dora": True},
    {"bias": "lora_only"},
    {"bias": "all", "r": 2},
    {"use_dora": True},
]


CASES = [(head, words) for head in ("masked_lm", "sequence_classification") for words in TUNERS]


@pytest.mark.parametrize(("head", "words"), [*CASES, ("masked_lm", {"target_modules": ("dense",)})])
def test_lora_counts_the_weights_that_peft_adds(head, words):
    model = build(head)
    before = sum(each.numel() for each in model.parameters())
    biases = sum(weight.numel() for name, weight in model.named_parameters() if "bias" in name)
    tuner = LoRA(**words)
    tuned = tuner.apply(model)
    counted = costs.lora(
        costs.linear_layers(SHAPE, head, LABELS), r=tuner.r, target_modules=tuner.target_modules,
        whole=model.finery_new_modules, use_dora=tuner.use_dora, bias=tuner.bias, all_biases=biases,
    )  # fmt: skip
    learnt = sum(each.numel() for each in tuned.parameters() if each.requires_grad)
    assert counted.learnt == learnt
    assert counted.added == sum(each.numel() for each in tuned.parameters()) - before


def batch(size: int, length: int, head: str):
    torch.manual_seed(0)
    words = torch.randint(5, SHAPE["vocab_size"], (size, length))
    mask = torch.ones_like(words)
    if head == "sequence_classification":
        return {"input_ids": words, "attention_mask": mask, "labels": torch.randint(0, LABELS, (size,))}, 0
    labels = torch.where(torch.rand(size, length) < 0.2, words, -100)
    return {"input_ids": words, "attention_mask": mask, "labels": labels}, int((labels != -100).sum())


def run(model, inputs, head):
    return (masked_token_loss if head == "masked_lm" else classification_loss)(model, inputs)


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("length", [16, 64])
def test_activations_are_about_what_autograd_keeps(head, norm_position, length):
    model = build(head, norm_position=norm_position).train()
    inputs, predicted = batch(8, length, head)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = run(model, inputs, head)
    counted = costs.activations(
        SHAPE, batch=8, length=length, predicted=predicted, mixed=False, on_cpu=True, recomputed=False
    )
    held = sum(kept.values()) + 2 * predicted * SHAPE["vocab_size"] * 4  # the logits and their gradient live beside it
    assert counted == pytest.approx(held, rel=0.1)
    loss.backward()


def test_recomputed_activations_keep_one_vector_a_token_and_layer():
    common = {"batch": 4, "length": 32, "predicted": 0, "mixed": False, "on_cpu": False}
    kept = costs.activations(SHAPE, **common)
    recomputed = costs.activations(SHAPE, **common, recomputed=True)
    embeddings = 4 * 32 * 48 * 5
    assert recomputed - embeddings == (kept - embeddings) // 3 + 3 * 4 * 32 * 48 * 4


def test_half_precision_on_a_gpu_is_the_formula_of_the_paper_with_float32_norms():
    """34 sbh bytes a layer for an inner size of 4h (section 4.1), and 4 sbh more, since our norms read float32."""
    shape = {**SHAPE, "intermediate_size": 4 * SHAPE["hidden_size"], "num_hidden_layers": 1}
    tokens, width = 4 * 32, SHAPE["hidden_size"]
    counted = costs.activations(shape, batch=4, length=32, predicted=0, mixed=True, on_cpu=False)
    assert counted == (34 + 4) * tokens * width + 5 * tokens * width


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification"])
def test_a_training_step_costs_three_forward_passes_and_under_lora_two(head):
    inputs, predicted = batch(4, 32, head)

    def measured(model):
        run(model, inputs, head)  # the first step of a model also tries out whether its head can see few positions
        with FlopCounterMode(display=False) as counter:
            run(model, inputs, head)[0].backward()
        return counter.get_total_flops()

    forward = forward_flops(SHAPE, head, 32, LABELS, predicted_tokens=predicted // 4)["total"] * 4
    assert measured(build(head).train()) == pytest.approx(3 * forward, rel=0.02)
    model = build(head)
    tuned = LoRA(r=4).apply(model)
    adapter = costs.lora(costs.linear_layers(SHAPE, head, LABELS), r=4, whole=model.finery_new_modules)
    expected = 2 * forward + 3 * adapter.flops_per_token * 4 * 32
    assert measured(tuned.train()) == pytest.approx(expected, rel=0.1)


def test_memory_is_weights_gradients_and_two_adam_moments():
    """1,000 weights of which 100 learn: 4 bytes each, 4 a gradient, 8 of Adam's state; 6 with 16-bit copies."""
    one = costs.memory(
        parameters=1000, trainable=100, optimizer="adamw_torch", activations=7, mixed=False, processes=1
    )
    assert (one.weights, one.gradients, one.optimizer, one.activations, one.total) == (4000, 400, 800, 7, 5207)
    two = costs.memory(parameters=1000, trainable=100, optimizer="sgd", activations=7, mixed=True, processes=2)
    assert (two.weights, two.gradients, two.optimizer) == (6000, 800, 0)


@pytest.mark.parametrize("optimizer", sorted(costs.OPTIMIZER_BYTES))
def test_optimizer_state_is_what_the_live_optimizer_holds(optimizer, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = build("sequence_classification")
    arguments = TrainingArguments(output_dir=str(tmp_path), optim=optimizer, use_cpu=True, report_to="none")
    live = Trainer(model=model, args=arguments).create_optimizer()
    inputs, _ = batch(2, 8, "sequence_classification")
    run(model, inputs, "sequence_classification")[0].backward()
    live.step()
    held = sum(
        value.numel() * value.element_size()
        for state in live.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.ndim
    )
    weights = sum(each.numel() for each in model.parameters())
    slack = 0.15 if optimizer == "adafactor" else 0.01  # its rows and columns weigh more in so small a model
    assert held / weights == pytest.approx(costs.OPTIMIZER_BYTES[optimizer], abs=4 * slack)


def test_every_optimizer_a_recipe_may_name_has_its_bytes():
    from pipelines.fields.arguments import OPTIMIZERS

    assert set(costs.OPTIMIZER_BYTES) == set(OPTIMIZERS)
