"""The formula of a step's memory against what autograd keeps, what torch allocates, and sums by hand."""

import gc
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from unittest.mock import patch

import pytest
import torch
from transformers import AutoConfig

from pipelines.architectures import FineryConfig, arithmetic
from pipelines.architectures.configuration_rules import completed
from pipelines.core import costs
from pipelines.core.interfaces import Head
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.heads import auto_class, head_settings
from pipelines.objectives.losses import classification_loss, token_loss
from pipelines.runs.planning import training_memory
from pipelines.runs.planning.model_size import PLAIN_HEADS, ForeignShape, OwnShape
from pipelines.runs.planning.training_memory import Step, memory
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.joint_projections import joint_projections
from pipelines.trainers.muon import MuonWithAdamW, matrices_of_layers
from pipelines.tuners.lora import LoRA
from tests.covering import by_turns, covering

SIZES = {
    "vocab_size": 400,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "max_position_embeddings": 160,
}
LLAMA = {
    "family": "decoder", "position": "rotary", "norm_type": "rms_norm", "norm_position": "pre", "hidden_act": "silu",
    "is_gated_act": True, "num_key_value_heads": 2, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
T5 = {
    "family": "encoder-decoder",
    "position": "relative",
    "norm_type": "rms_norm",
    "norm_position": "pre",
    "hidden_act": "relu",
    "attention_scoring": "dot_product",
}
DESIGNS = {
    "bert": {},
    "rotary-sandwich": {"position": "rotary", "norm_position": "sandwich", "qk_norm": True},
    "additive": {"attention_scoring": "additive", "num_hidden_layers": 2},
    "general": {"attention_scoring": "general", "hidden_act": "gelu_new"},
    "cosine": {"attention_scoring": "cosine", "activation_dropout_prob": 0.1},
    "window": {"attention_pattern": "sliding_window", "sliding_window": 8, "position": "alibi"},
    "some-windows": {"attention_pattern": "sliding_window", "sliding_window": 8, "global_attn_every_n_layers": 2},
    "linear": {"attention_pattern": "linear"},
    "gpt": {"family": "decoder", "norm_position": "pre", "hidden_act": "gelu_new"},
    "llama": LLAMA,
    "linear-decoder": {**LLAMA, "attention_pattern": "linear"},
    "transformer": {"family": "encoder-decoder", "position": "sinusoidal", "hidden_act": "relu"},
    "t5": T5,
}
ASKED = 16


def build(words: dict, head: Head):
    config = FineryConfig(**{**SIZES, **words}, **head_settings(head))
    return auto_class(head).from_config(config, attn_implementation="eager").train()


def inputs(family: str, batch: int, length: int, target: int) -> tuple[dict[str, torch.Tensor], int]:
    """A batch of a language model, and how many tokens of each sequence get logits."""
    torch.manual_seed(0)
    words = torch.randint(5, SIZES["vocab_size"], (batch, length))
    found = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    if family == "encoder-decoder":
        targets = torch.randint(5, SIZES["vocab_size"], (batch, target))
        return found | {"decoder_input_ids": targets, "labels": targets}, target
    asked = ASKED if family == "encoder" else length
    labels = words.clone()
    labels[:, asked:] = -100
    return found | {"labels": labels}, asked


@contextmanager
def as_trained(model):
    """With the attention and the dropout that a trainer gives a model on a CPU; random bits in memory that torch
    counts."""
    plain = torch.from_numpy
    with (
        patch.object(torch, "from_numpy", lambda array: plain(array).clone()),
        few_bits() as masks,
        masks.batch(1),
        attention_by_size(model, training_attention.register()),
        joint_projections(model),
    ):
        yield


def bytes_kept(model, loss) -> int:
    """Bytes that autograd keeps of a forward pass, weights left out."""
    with as_trained(model):
        loss()  # finds out which places are read
        return _bytes_kept(model, loss)


def _bytes_kept(model, loss) -> int:
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("design", "mixed"),
    by_turns(DESIGNS, (False, True), lambda design, mixed: f"{design}-{'bf16' if mixed else 'float32'}"),
)
def test_activations_are_what_autograd_keeps(design, mixed):
    words = DESIGNS[design]
    family = words.get("family", "encoder")
    head = PLAIN_HEADS[family]
    model = build(words, head)
    batch, asked = inputs(family, 4, 96, 70)

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return token_loss(model, batch)

    held = bytes_kept(model, loss)
    step = Step(batch=4, length=96, target=70, predicted=asked, mixed=mixed)
    assert memory({**SIZES, **words}, head.kind, 2, step).activations == pytest.approx(held, rel=0.05)


SILENT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FUSED = {
    "bert": SILENT,
    "rotary": {**SILENT, "position": "rotary"},
    "window": {**SILENT, "attention_pattern": "sliding_window", "sliding_window": 8},
    "gpt": {**SILENT, "family": "decoder", "norm_position": "pre"},
    "llama": LLAMA,
    "transformer": {**SILENT, "family": "encoder-decoder", "position": "sinusoidal"},
}
"""Designs without dropout, whose attention is fused where a batch is large."""


@pytest.mark.parametrize(
    ("design", "mixed", "padded"),
    covering(product(FUSED, (False, True), (False, True))),
)
def test_with_fused_attention_autograd_keeps_no_scores(design, mixed, padded, monkeypatch):
    words, kept = {**FUSED[design], "num_attention_heads": 8}, {}
    head = PLAIN_HEADS[words.get("family", "encoder")]
    model = build(words, head)
    batch, asked = inputs(words.get("family", "encoder"), 4, 128, 100)
    if padded:
        batch["attention_mask"][0, 100:] = 0

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return token_loss(model, batch)

    step = Step(batch=4, length=128, target=100, predicted=asked, mixed=mixed, padded=padded)
    for name, enough in (("small", 4 * 8 * 128 * 128 + 1), ("fused", 4 * 8 * 128 * 128)):
        monkeypatch.setattr(costs, "SCORES_LEARNT", {"no": enough, "bf16": enough})
        kept[name] = bytes_kept(model, loss)
        assert memory({**SIZES, **words}, head.kind, 2, step).activations == pytest.approx(kept[name], rel=0.05)
    assert kept["fused"] < 0.9 * kept["small"]


def most_allocated(step) -> int:
    """Every allocation and release that torch records, summed."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = record.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def peak_of_a_step(model, loss, mixed: bool) -> int:
    """Bytes at the fullest moment of a step of AdamW, weights and its state among them."""
    learnt = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learnt, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    with as_trained(model):
        step()
        step()
        most = most_allocated(step)
    standing = 4 * sum(each.numel() for each in model.parameters()) + 8 * sum(each.numel() for each in learnt)
    return standing + most


SHAPES = [(8, 24, 16), (2, 128, 100)]


@pytest.mark.parametrize(
    ("lora", "mixed", "shape", "design"),
    covering(
        product(
            (False, True),
            (False, True),
            SHAPES,
            ("bert", "llama", "gpt", "transformer", "t5", "linear-decoder", "additive"),
        )
    ),
)
def test_the_peak_is_that_of_counted_allocations(design, lora, mixed, shape):
    words = DESIGNS[design]
    family = words.get("family", "encoder")
    head = PLAIN_HEADS[family]
    model = build(words, head)
    learnt, added = None, 0
    if lora:
        adapter = OwnShape({**SIZES, **words}).adapter(LoRA(r=4), head, [])
        learnt, added = adapter.by_layer, adapter.added
        model = LoRA(r=4).apply(model)
    batch, asked = inputs(family, *shape)
    measured = peak_of_a_step(model, lambda: token_loss(model, batch)[0] / 100, mixed)
    total = arithmetic.parameter_count({**SIZES, **words}, head.kind)["total"] + added
    step = Step(batch=shape[0], length=shape[1], target=shape[2], predicted=asked, mixed=mixed)
    predicted = memory({**SIZES, **words}, head.kind, 2, step, parameters=total, learnt=learnt)
    assert predicted.peak == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("mixed", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_peak_of_many_logits_is_that_of_counted_allocations(mixed):
    words = {"family": "decoder", "norm_position": "pre", "vocab_size": 60_000}
    head = PLAIN_HEADS["decoder"]
    model = build(words, head)
    batch, asked = inputs("decoder", 8, 128, 0)
    measured = peak_of_a_step(model, lambda: token_loss(model, batch)[0] / 100, mixed)
    step = Step(batch=8, length=128, target=0, predicted=asked, mixed=mixed)
    assert memory({**SIZES, **words}, head.kind, 2, step).peak == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("family", "mixed", "padded", "whole"),
    covering(product(sorted(PLAIN_HEADS), (False, True), (False, True), (False, True))),
)
def test_the_peak_of_a_decision_is_that_of_counted_allocations(family, mixed, padded, whole):
    head = Head("sequence_classification", ("a", "b", "c"))
    words = {"family": family}
    model = build(words, head)
    tokens = inputs("encoder", 4, 64, 0)[0]["input_ids"]
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, 60:] = 0
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 0])}

    def loss():
        return classification_loss(model, batch, head_alone=not whole)[0] / 4

    step = Step(batch=4, length=64, target=64, predicted=0, mixed=mixed, padded=padded, whole=whole)
    predicted = memory({**SIZES, **words}, head.kind, 3, step)
    assert predicted.peak == pytest.approx(peak_of_a_step(model, loss, mixed), rel=0.15)


@pytest.mark.parametrize(
    ("design", "whole"), by_turns(["bert", "rotary-sandwich", "gpt", "llama", "t5"], (False, True))
)
def test_a_decision_keeps_of_its_last_layer_what_is_counted(design, whole):
    head = Head("sequence_classification", ("a", "b", "c"))
    model = build(DESIGNS[design], head)
    tokens = inputs("encoder", 4, 96, 0)[0]["input_ids"]
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1, 2, 0])}
    held = bytes_kept(model, lambda: classification_loss(model, batch, head_alone=not whole))
    step = Step(batch=4, length=96, target=96, predicted=0, whole=whole)
    words = {**SIZES, **DESIGNS[design]}
    assert memory(words, head.kind, 3, step).activations == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "deberta-v2", "gpt2", "llama", "mistral"])
def test_models_of_transformers_save_what_is_said_or_more(name):
    """Of BERT and its kin the projection behind attention is narrow too."""
    words = {"model_type": name, **SIZES, "type_vocab_size": 2, "pad_token_id": 0}
    words |= {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 160} if name == "gpt2" else {}
    words |= {"num_key_value_heads": 2} if name in ("llama", "mistral") else {}
    head = Head("sequence_classification", ("a", "b", "c"))
    shape = ForeignShape(words)
    assert shape.cuts_last_layer(head)
    settings = {key: value for key, value in words.items() if key != "model_type"}
    config = AutoConfig.for_model(name, **settings, **head_settings(head))
    model = auto_class(head).from_config(config, attn_implementation="eager").train()
    tokens = inputs("encoder", 4, 96, 0)[0]["input_ids"]
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1, 2, 0])}
    held = [bytes_kept(model, partial(classification_loss, model, batch, head_alone=alone)) for alone in (False, True)]
    step = Step(batch=4, length=96, target=96, predicted=0, whole=True, every_query=True)
    steps = [step, replace(step, whole=False)]
    counted = [memory(shape.words(head), head.kind, 3, each).activations for each in steps]
    assert 0 < counted[0] - counted[1] <= held[0] - held[1]


@pytest.mark.parametrize(
    ("head", "predicted", "read"),
    [
        ("masked_lm", 24, 24),
        ("masked_lm", 25, 32),
        ("masked_lm", 0, 32),
        ("pretraining", 8, 9),
        ("multiple_choice", 0, 1),
        ("token_classification", 0, 32),
    ],
)
def test_the_last_layer_is_counted_for_the_places_that_are_read(head, predicted, read):
    """Behind attention a place keeps a constant number of bytes, and its number where it is picked out."""
    step = Step(batch=4, length=32, target=0, predicted=predicted, every_query=True)
    saved = memory(SIZES, head, 2, replace(step, whole=True)).activations - memory(SIZES, head, 2, step).activations
    values = (
        64 + 2 + 64 // 2 + 64 + 2 * 160
    )  # norm's input and statistics, bits of dropout, what two matrices and gelu read
    assert saved == (4 * (32 - read) * values * 4 - 8 * 4 * read if read < 32 else 0)


def test_where_the_first_place_is_read_one_query_of_the_last_attention_is_counted():
    """Of each other query that are its vector, what it attends to, and for each key and head a chance and bits."""
    every = Step(batch=4, length=32, target=0, predicted=0, every_query=True)
    one = replace(every, every_query=False)
    saved = memory(SIZES, "reward", 1, every).activations - memory(SIZES, "reward", 1, one).activations
    heads = SIZES["num_attention_heads"]
    assert saved == 4 * 31 * (2 * 64 * 4 + heads * 32 * (4 + 2))
    assert memory(SIZES, "masked_lm", 2, every) == memory(SIZES, "masked_lm", 2, one)


def test_recomputed_activations_keep_one_vector_a_token_and_layer():
    common = {"batch": 4, "length": 32, "target": 0, "predicted": 0, "on_cpu": False}
    kept = memory(SIZES, "masked_lm", 2, Step(**common))
    recomputed = memory(SIZES, "masked_lm", 2, Step(**common, recomputed=True))
    fewer = kept.activations - recomputed.activations
    one_layer = _one_layer(SIZES, Step(**common))
    assert fewer == 3 * (one_layer - 4 * 32 * 64 * 4)
    assert recomputed.peak < kept.peak


def _one_layer(sizes: dict, step: Step) -> int:
    """What one layer keeps: the difference between models that have one more and one fewer."""
    more = memory({**sizes, "num_hidden_layers": 5}, "masked_lm", 2, step).activations
    return more - memory({**sizes, "num_hidden_layers": 4}, "masked_lm", 2, step).activations


def test_half_precision_on_a_gpu_is_about_the_formula_of_the_paper():
    """34 sbh bytes a layer for an inner width of 4h (section 4.1): the inputs of query, key and value are three copies
    here, norms read float32, and there are 16-bit copies of the weights."""
    sizes = {**SIZES, "intermediate_size": 4 * SIZES["hidden_size"], "attention_bias": False, "mlp_bias": False}
    step = Step(batch=8, length=128, target=0, predicted=0, mixed=True, on_cpu=False)
    tokens, width = 8 * 128, SIZES["hidden_size"]
    weights = 2 * 12 * width * width
    statistics = 2 * tokens * 8
    assert _one_layer(sizes, step) == (34 + 2 * 2 + 2 * 2) * tokens * width + weights + statistics


def test_memory_is_weights_gradients_and_two_adam_moments():
    """4 bytes a weight, 4 a gradient, 8 of Adam's state; half as many learn, in two processes, with plain SGD."""
    total = arithmetic.parameter_count(SIZES, "masked_lm")["total"]
    step = Step(batch=1, length=2, target=0, predicted=1)
    one = memory(SIZES, "masked_lm", 2, step)
    assert (one.weights, one.gradients, one.optimizer) == (4 * total, 4 * total, 8 * total)
    assert one.peak >= 16 * total
    two = memory(
        SIZES,
        "masked_lm",
        2,
        Step(batch=1, length=2, target=0, predicted=1, optimizer="sgd", processes=2),
        parameters=total + 10,
        trainable=100,
        learnt={"model.layers.0.attention.query": 100},
    )
    assert (two.weights, two.gradients, two.optimizer) == (4 * (total + 10), 800, 0)


@pytest.mark.parametrize("mixed", [False, True])
def test_zero_divides_what_its_authors_say(mixed):
    """Rajbhandari et al. 2020, section 5: of 2 + 2 + 12 bytes a weight in 16 bits, stage 2 divides 14 and stage 3 all.
    What is whole for a moment is beside that."""
    step = Step(2, 16, 16, 16, mixed=mixed, on_cpu=False, processes=4)
    config = {**SIZES, **LLAMA}
    counts = arithmetic.parameter_count(config, "causal_lm", 0)
    everything, value = counts["total"], 2 if mixed else 4
    layers = sum(counts[part] for part in training_memory.LAYERED)
    moment = value * (everything - layers + layers // 3)  # gradients of a layer and of what is in none
    two, three = (memory(config, "causal_lm", 0, replace(step, zero=stage)) for stage in (2, 3))
    assert two.weights == value * everything
    assert three.weights == value * everything // 4 + value * everything  # all are below what DeepSpeed keeps
    for found in (two, three):
        assert found.optimizer == 12 * everything // 4
        assert found.gradients == pytest.approx(value * everything // 4 + moment, abs=4)
        assert found.peak >= found.weights + found.optimizer + found.gradients
    whole = memory(config, "causal_lm", 0, replace(step, processes=1))
    copies = whole.activations - two.activations
    linear = arithmetic.linear_layers(completed(config), "causal_lm", 0)
    assert copies == (sum(2 * each.inputs * each.outputs for each in linear) if mixed else 0)


def test_gradients_of_earlier_batches_stand_beside_activations():
    once = memory(SIZES, "masked_lm", 2, Step(batch=32, length=64, target=0, predicted=8))
    often = memory(SIZES, "masked_lm", 2, Step(batch=32, length=64, target=0, predicted=8, accumulated=4))
    assert often.peak == once.peak + once.gradients


@pytest.mark.parametrize("optimizer", sorted(training_memory.OPTIMIZER_BYTES))
def test_optimizer_state_is_what_the_live_optimizer_holds(optimizer, tmp_path):
    from transformers import Trainer, TrainingArguments

    head = Head("sequence_classification", ("a", "b"))
    model = build({}, head)
    named = "adamw_torch_fused" if optimizer == "muon" else optimizer
    arguments = TrainingArguments(output_dir=str(tmp_path), optim=named, use_cpu=True, report_to="none")
    live = Trainer(model=model, args=arguments).create_optimizer()
    if optimizer == "muon":
        live = MuonWithAdamW(model, (), 1e-3, 0.0, (0.9, 0.999), 1e-8)
    model(torch.ones(2, 8, dtype=torch.long)).logits.sum().backward()
    live.step()
    held = sum(
        value.numel() * value.element_size()
        for state in live.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.ndim
    )
    weights = sum(each.numel() for each in model.parameters())
    if optimizer == "muon":  # half as much for the matrices of layers: what is said is the most
        held += 4 * sum(matrix.numel() for matrix in matrices_of_layers(model))
    slack = 0.15 if optimizer == "adafactor" else 0.01  # its rows and columns weigh more in so small a model
    assert held / weights == pytest.approx(training_memory.OPTIMIZER_BYTES[optimizer], abs=4 * slack)


def test_every_optimizer_a_recipe_may_name_has_its_bytes():
    from pipelines.core.training_arguments import OPTIMIZERS

    assert set(training_memory.OPTIMIZER_BYTES) == set(OPTIMIZERS)


def test_every_activation_keeps_what_is_said_of_it():
    from pipelines.architectures.configuration_rules import ACTIVATIONS
    from pipelines.architectures.layers import activation

    for name in ACTIVATIONS:
        kept: dict[int, torch.Tensor] = {}

        def pack(tensor, kept=kept):
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        given = torch.randn(8, 16, requires_grad=True) * 1.0
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = activation(type("Config", (), {"hidden_act": name}))(given)
        beside = [each for each in kept.values() if each.shape == (8, 16) and each.dtype == given.dtype]
        own = 1 if any(each.data_ptr() == result.data_ptr() for each in beside) else 0
        assert len(beside) - own == training_memory.ACTIVATION_VALUES.get(name, 1), name


def test_the_completed_config_is_what_is_counted():
    step = Step(batch=2, length=16, target=0, predicted=4)
    usual = {
        key: value
        for key, value in completed(dict(SIZES)).items()
        if key in ("head_dim", "type_vocab_size", "embedding_norm")
    }
    assert memory(SIZES, "masked_lm", 2, step) == memory({**SIZES, **usual}, "masked_lm", 2, step)
