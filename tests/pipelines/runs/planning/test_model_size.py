"""What LoRA adds by formula, against what PEFT adds to built models."""

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipelines.architectures import FineryConfig
from pipelines.architectures.arithmetic import forward_flops, linear_layers, other_biases
from pipelines.core.interfaces import Head
from pipelines.models.heads import auto_class, head_settings
from pipelines.runs.planning import model_size
from pipelines.runs.planning.model_size import PLAIN_HEADS, OwnShape
from pipelines.tuners.lora import LoRA
from tests.covering import covering

SIZES = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
DECISION = Head("sequence_classification", ("a", "b", "c"))
DESIGNS = [
    {},
    {"embedding_size": 20, "norm_type": "rms_norm", "norm_position": "pre"},
    {"family": "decoder", "is_gated_act": True, "mlp_bias": False, "num_key_value_heads": 2, "norm_bias": False},
    {"family": "encoder-decoder", "position": "relative", "qk_norm": True, "norm_position": "sandwich"},
    {"family": "encoder-decoder", "num_decoder_layers": 1, "attention_bias": False, "lm_head_bias": True},
]
TUNERS = [
    {},
    {"r": 3},
    {"target_modules": ("query", "value")},
    {"target_modules": ("feed_forward.output", "query"), "use_dora": True},
    {"bias": "lora_only"},
    {"bias": "all", "r": 2},
    {"use_dora": True},
]


def build(words: dict, head: Head):
    config = FineryConfig(**{**SIZES, **words}, **head_settings(head))
    return auto_class(head).from_config(config, attn_implementation="eager")


def lacking(words: dict, head: Head) -> list[str]:
    shape = OwnShape({**SIZES, **words})
    return shape.lacking(head, PLAIN_HEADS[shape.family])


@pytest.mark.parametrize(("words", "tuner", "decides"), covering(product(DESIGNS, TUNERS, (False, True))))
def test_lora_counts_the_weights_that_peft_adds(words, tuner, decides):
    head = DECISION if decides else PLAIN_HEADS[words.get("family", "encoder")]
    model = build(words, head)
    model.finery_new_modules = lacking(words, head)
    before = sum(each.numel() for each in model.parameters())
    block = LoRA(**tuner)
    tuned = block.apply(model)
    counted = OwnShape({**SIZES, **words}).adapter(block, head, model.finery_new_modules)
    learnt = sum(each.numel() for each in tuned.parameters() if each.requires_grad)
    assert counted.learnt == learnt
    assert counted.added == sum(each.numel() for each in tuned.parameters()) - before


def test_modules_that_only_one_task_has_are_named():
    assert lacking({}, DECISION) == ["model.pooler.dense", "classifier"]
    assert lacking({}, PLAIN_HEADS["encoder"]) == []
    assert lacking({}, Head("token_classification", ("a", "b"))) == ["classifier"]
    assert lacking({"family": "decoder"}, DECISION) == ["classifier"]
    assert lacking({"family": "encoder-decoder"}, Head("question_answering")) == ["qa_outputs"]
    shape = OwnShape(SIZES)
    assert shape.lacking(DECISION, Head("pretraining")) == ["classifier"]  # its pooler learnt to tell pairs
    assert shape.lacking(DECISION, DECISION) == []
    assert shape.lacking(DECISION, Head("sequence_classification", ("a", "b"))) == ["classifier"]


@pytest.mark.parametrize("family", sorted(PLAIN_HEADS))
@pytest.mark.parametrize(
    "kind", ["sequence_classification", "token_classification", "question_answering", "multiple_choice"]
)
def test_they_are_those_that_a_model_from_scratch_names(family, kind):
    from pipelines.models.opening import _fresh_modules

    head = Head(kind, ("a", "b", "c") if kind.endswith("classification") else ())
    assert sorted(lacking({"family": family}, head)) == _fresh_modules(build({"family": family}, head))


def test_a_named_head_is_a_target_too():
    words = {"target_modules": ("dense",)}
    model = build({}, PLAIN_HEADS["encoder"])
    model.finery_new_modules = []
    tuned = LoRA(**words).apply(model)
    counted = model_size.lora(linear_layers(SIZES, "masked_lm"), r=8, target_modules=("dense",))
    assert counted.learnt == sum(each.numel() for each in tuned.parameters() if each.requires_grad)


def test_by_layer_says_where_the_weights_are():
    counted = model_size.lora(linear_layers(SIZES, "sequence_classification", 3), r=2, whole=["classifier"])
    assert sum(counted.by_layer.values()) == counted.learnt
    assert counted.by_layer["classifier"] == 48 * 3 + 3
    assert counted.by_layer["model.layers.0.feed_forward.output"] == 2 * (96 + 48)


def test_all_biases_are_those_of_layers_and_all_others():
    counted = model_size.lora([], r=2, bias="all", other_biases=other_biases(SIZES, "masked_lm"))
    assert counted.learnt == (1 + 2 * 3 + 1) * 48 + 211  # of the embeddings, the layers, the head, the output matrix


@pytest.mark.parametrize("family", sorted(PLAIN_HEADS))
def test_a_training_step_costs_three_forward_passes_and_under_lora_about_two(family):
    words, head = {"family": family}, PLAIN_HEADS[family]
    tokens = torch.ones(4, 32, dtype=torch.long)
    more = {"decoder_input_ids": tokens[:, :24]} if family == "encoder-decoder" else {}

    def measured(model) -> int:
        with FlopCounterMode(display=False) as counter:
            model.train()(input_ids=tokens, **more).logits.sum().backward()
        return counter.get_total_flops()

    forward = forward_flops({**SIZES, **words}, head.kind, 32, target_length=24)["total"] * 4
    assert measured(build(words, head)) == pytest.approx(3 * forward, rel=0.02)
    model = build(words, head)
    model.finery_new_modules = []
    tuned = LoRA(r=4).apply(model)
    adapter = model_size.lora(linear_layers({**SIZES, **words}, head.kind), r=4)
    expected = 2 * forward + 3 * adapter.flops_per_token * 4 * (28 if more else 32)
    assert measured(tuned) == pytest.approx(expected, rel=0.1)
