"""Where bottleneck adapters stand, what they compute, and that PEFT treats them as its own."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import mapping
from torch import nn
from torch.nn import functional as F

from pipelines.tuners import bottleneck
from pipelines.tuners.adapter import NO_ATTENTION, NO_FEED_FORWARD, Adapter
from pipelines.tuners.bottleneck import UNMERGEABLE, BottleneckConfig, BottleneckLayer, norms_of, places_for
from tests import tiny

KINDS = ("houlsby", "pfeiffer", "parallel")
SMALL: dict[str, dict[str, Any]] = {
    "bert": {}, "distilbert": {}, "albert": {}, "gpt2": {}, "modernbert": {}, "deberta-v2": {}, "electra": {}, "xlnet": {"n_layer": 2},
    "deberta": {"num_hidden_layers": 2}, "llama": {"num_hidden_layers": 2}, "t5": {"num_layers": 2}, "bart": {"encoder_layers": 2, "decoder_layers": 2},
    "mpnet": {"num_hidden_layers": 2}, "led": {"encoder_layers": 2, "decoder_layers": 2}, "mixtral": {"num_hidden_layers": 2}, "fnet": {"num_hidden_layers": 2},
    "xlm": {"n_layers": 2}, "gpt_neox": {"num_hidden_layers": 2}, "phi3": {"num_hidden_layers": 2}, "mamba": {"num_hidden_layers": 2}, "rwkv": {"num_hidden_layers": 2},
    "perceiver": {}, "ctrl": {"n_layer": 2}, "squeezebert": {"num_hidden_layers": 2}, "ibert": {"num_hidden_layers": 2},
}  # fmt: skip
"""Two layers of each; the other sizes are those of the tests or the type's own, without memory behind them."""

EXITS = {
    "bert": (
        ["encoder.layer.1.attention.output.dense"],
        "encoder.layer.1.output.dense",
        "encoder.layer.1.intermediate.dense",
    ),
    "distilbert": (
        ["transformer.layer.1.attention.out_lin"],
        "transformer.layer.1.ffn.lin2",
        "transformer.layer.1.ffn.lin1",
    ),
    "albert": (
        ["encoder.albert_layer_groups.0.albert_layers.0.attention.dense"],
        "encoder.albert_layer_groups.0.albert_layers.0.ffn_output",
        "encoder.albert_layer_groups.0.albert_layers.0.ffn",
    ),
    "gpt2": (["h.1.attn.c_proj"], "h.1.mlp.c_proj", "h.1.mlp.c_fc"),
    "modernbert": (["layers.1.attn.Wo"], "layers.1.mlp.Wo", "layers.1.mlp.Wi"),
    "deberta-v2": (
        ["encoder.layer.1.attention.output.dense"],
        "encoder.layer.1.output.dense",
        "encoder.layer.1.intermediate.dense",
    ),
    "deberta": (
        ["encoder.layer.1.attention.output.dense"],
        "encoder.layer.1.output.dense",
        "encoder.layer.1.intermediate.dense",
    ),
    "mpnet": (
        ["encoder.layer.1.attention.attn.o"],
        "encoder.layer.1.output.dense",
        "encoder.layer.1.intermediate.dense",
    ),
    "llama": (["layers.1.self_attn.o_proj"], "layers.1.mlp.down_proj", "layers.1.mlp.up_proj"),
    "phi3": (["layers.1.self_attn.o_proj"], "layers.1.mlp.down_proj", "layers.1.mlp.gate_up_proj"),
    "gpt_neox": (["layers.1.attention.dense"], "layers.1.mlp.dense_4h_to_h", "layers.1.mlp.dense_h_to_4h"),
    "t5": (
        ["decoder.block.1.layer.0.SelfAttention.o", "decoder.block.1.layer.1.EncDecAttention.o"],
        "decoder.block.1.layer.2.DenseReluDense.wo",
        "decoder.block.1.layer.2.DenseReluDense.wi",
    ),
    "bart": (
        ["decoder.layers.1.self_attn.out_proj", "decoder.layers.1.encoder_attn.out_proj"],
        "decoder.layers.1.fc2",
        "decoder.layers.1.fc1",
    ),
    "led": (
        ["decoder.layers.1.self_attn.out_proj", "decoder.layers.1.encoder_attn.out_proj"],
        "decoder.layers.1.fc2",
        "decoder.layers.1.fc1",
    ),
    "xlm": (["attentions.1.out_lin"], "ffns.1.lin2", "ffns.1.lin1"),
    "ctrl": (["h.1.multi_head_attention.dense"], "h.1.ffn.2", "h.1.ffn.0"),
}
"""Type -> the linear layers that end the attentions of its last layer, and that end and begin its feed-forward network.

Read in the source of transformers' models by eye.
"""


def skeleton(model_type: str) -> Any:
    """The bare model without weights."""
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        return AutoModel.from_config(
            AutoConfig.for_model(model_type, **tiny.SHAPES.get(model_type, {}) | SMALL[model_type])
        )


@pytest.mark.parametrize("model_type", EXITS)
def test_the_places_are_found_by_themselves(model_type: str) -> None:
    model = skeleton(model_type)
    attentions, exit, entry = EXITS[model_type]
    feed_forward = places_for(model, "parallel")
    assert (feed_forward[-1].exit, feed_forward[-1].entry) == (exit, entry)
    assert places_for(model, "pfeiffer") == feed_forward
    stacks = 2 if model_type in ("t5", "bart", "led") else 1
    assert len(feed_forward) == (1 if model_type == "albert" else 2 * stacks)
    found = {place.exit for place in places_for(model, "houlsby")}
    assert {*attentions, exit} <= found
    assert len(found) == len(feed_forward) + (1 if model_type == "albert" else 2 * (stacks + len(attentions) - 1))


@pytest.mark.parametrize("model_type", SMALL)
def test_what_the_recipe_check_refuses_is_what_has_no_place(model_type: str) -> None:
    """The tables of names against the models themselves."""
    model = skeleton(model_type)
    for kind, table in (("houlsby", {*NO_ATTENTION, *NO_FEED_FORWARD}), ("parallel", NO_FEED_FORWARD)):
        assert (Adapter(kind=kind).misfit({"model_type": model_type}, "masked_lm") is not None) is (model_type in table)
        if model_type in table:
            with pytest.raises(ValueError, match="finds no linear layer that ends the"):
                places_for(model, kind)
        else:
            assert places_for(model, kind)


def test_a_layer_without_a_place_is_named() -> None:
    model = skeleton("llama")
    model.layers[1].mlp = nn.Identity()
    with pytest.raises(
        ValueError, match=r"ends the feed-forward network in layer 1 of LlamaModel's layers; use another tuner"
    ):
        places_for(model, "pfeiffer")
    model.layers[0].self_attn = nn.Identity()
    with pytest.raises(ValueError, match=r"ends the attention in layer 0 of LlamaModel's layers; use kind: pfeiffer"):
        places_for(model, "houlsby")


def tuned(family: str = "bert", kind: str = "houlsby", head: Any = tiny.MASKED, by: float = 0.1, **named: Any) -> Any:
    """A tiny model with a trained adapter."""
    model = Adapter(kind=kind, **({"reduction_factor": 4} | named)).apply(tiny.build(family, head))
    tiny.disturb(model, by=by)
    return model


def adapter_at(model: Any, place: str) -> dict[str, torch.Tensor]:
    """The weights of one adapter as PEFT would save them."""
    from peft import get_peft_model_state_dict

    start = f"base_model.model.{place}.bottleneck_adapters."
    return {
        key.removeprefix(start): value
        for key, value in get_peft_model_state_dict(model).items()
        if key.startswith(start)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_bert_layer_computes_what_the_papers_draw(kind: str) -> None:
    """Houlsby et al., figure 2; He et al., figure 1 and equation 8: written out, one operation a line."""
    model = tuned(kind=kind)
    layer = model.get_base_model().bert.encoder.layer[1].eval()
    where = "bert.encoder.layer.1"
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))

    def change(place: str, read: torch.Tensor) -> torch.Tensor:
        weights = adapter_at(model, place)
        bend = F.gelu if kind == "houlsby" else F.relu
        assert weights["down.weight"].shape == (8, 32)
        return (
            bend(read @ weights["down.weight"].T + weights["down.bias"]) @ weights["up.weight"].T + weights["up.bias"]
        )

    with torch.no_grad():
        attended = layer.attention.self(x)[0]
        y = attended @ layer.attention.output.dense.weight.T + layer.attention.output.dense.bias
        if kind == "houlsby":
            y = y + change(f"{where}.attention.output.dense", y)
        middle = layer.attention.output.LayerNorm(y + x)
        wide = F.gelu(layer.intermediate.dense(middle))
        y = wide @ layer.output.dense.weight.T + layer.output.dense.bias
        y = y + (
            4 * change(f"{where}.output.dense", middle) if kind == "parallel" else change(f"{where}.output.dense", y)
        )
        expected = layer.output.LayerNorm(y + middle)
        found = layer(x)
        torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, expected)


def test_near_identity_draws_from_a_normal_cut_at_two_deviations() -> None:
    from pipelines.tuners.bottleneck import Bottleneck

    torch.manual_seed(0)
    weights = Bottleneck(BottleneckConfig(init="near-identity", init_std=0.01, bottleneck_size=64), 256, 256)
    for each in (weights.down, weights.up):
        assert each.weight.abs().max() <= 0.02
        assert each.weight.std().item() == pytest.approx(0.01 * 0.8796, rel=0.03)  # of a normal cut at ±2
        assert not each.bias.any()
    model = Adapter(init="near-identity", reduction_factor=4).apply(tiny.build("bert", tiny.MASKED))
    with model.disable_adapter():
        before = tiny.logits(model, tiny.batch())
    first = tiny.logits(model, tiny.batch())
    assert not torch.equal(first, before)
    torch.testing.assert_close(first, before, atol=1e-2, rtol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_adapters_of_different_kinds_are_switched_deleted_and_taken_off(family: str, tmp_path: Path) -> None:
    wanted = {}
    head = tiny.MASKED if family == "bert" else tiny.Head("causal_lm")
    for seed, kind in enumerate(KINDS):
        model = tuned(family, kind, head, by=0.1 + seed / 10)
        wanted[kind] = tiny.logits(model, tiny.batch())
        model.save_pretrained(tmp_path / kind)
    from peft import PeftModel

    base = tiny.build(family, head)
    before = tiny.logits(base, tiny.batch())
    model = PeftModel.from_pretrained(base, tmp_path / "houlsby", adapter_name="houlsby")
    for kind in KINDS[1:]:
        model.load_adapter(tmp_path / kind, kind)
    for kind in (*KINDS, *reversed(KINDS)):
        model.set_adapter(kind)
        assert torch.equal(tiny.logits(model, tiny.batch()), wanted[kind])
        with model.disable_adapter():
            assert torch.equal(tiny.logits(model, tiny.batch()), before)
    model.set_adapter("parallel")
    model.delete_adapter("houlsby")
    assert torch.equal(tiny.logits(model, tiny.batch()), wanted["parallel"])
    bare = model.unload()
    assert torch.equal(tiny.logits(bare, tiny.batch()), before)
    assert not [module for module in bare.modules() if isinstance(module, BottleneckLayer) or module._forward_pre_hooks]


def test_merging_is_refused_with_a_sentence() -> None:
    model = tuned()
    for verb in (model.merge_and_unload, model.merge_adapter):
        with pytest.raises(ValueError, match=UNMERGEABLE):
            verb()
    assert [module for module in model.modules() if isinstance(module, BottleneckLayer)]  # and nothing was taken apart


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_no_gradient(kind: str, reentrant: bool) -> None:
    def gradients(checkpointed: bool) -> dict[str, torch.Tensor]:
        model = tuned("bert", kind, tiny.THREE).train()
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(**tiny.batch()).logits.square().sum().backward()
        return {
            name: weight.grad
            for name, weight in model.named_parameters()
            if weight.grad is not None and weight.requires_grad
        }

    plain, checkpointed = gradients(False), gradients(True)
    assert any("bottleneck" in name and grad.any() for name, grad in plain.items())
    assert plain.keys() == checkpointed.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(checkpointed[name], grad, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_base_in_bf16_the_adapter_learns_in_fp32(kind: str) -> None:
    model = Adapter(kind=kind, reduction_factor=4).apply(tiny.build("bert", tiny.THREE).to(torch.bfloat16))
    tiny.disturb(model)
    learning = {name: weight for name, weight in model.named_parameters() if "bottleneck_" in name}
    assert {weight.dtype for weight in learning.values()} == {torch.float32}
    said = model(**tiny.batch()).logits
    assert said.dtype == torch.bfloat16
    said.float().square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in learning.values())


def test_a_copy_has_adapters_of_its_own() -> None:
    """The parallel adapter reads by a hook, which must lead to the copy's layer."""
    model = tuned(kind="parallel")
    before = tiny.logits(model, tiny.batch())
    other = copy.deepcopy(model)
    tiny.disturb(model, by=1.0)
    assert torch.equal(tiny.logits(other, tiny.batch()), before)
    assert not torch.equal(tiny.logits(model, tiny.batch()), before)


def test_norms_learn_with_their_layers_only() -> None:
    model = tiny.build("bert", tiny.MASKED)
    names = norms_of(model, places_for(model, "houlsby", [1]))
    assert names == ["bert.encoder.layer.1.attention.output.LayerNorm", "bert.encoder.layer.1.output.LayerNorm"]
    adapted = Adapter(layers=(1,), train_layer_norm=True, reduction_factor=4).apply(model)
    learning = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert all(".layer.1." in name for name in learning)
    assert len([name for name in learning if "LayerNorm.modules_to_save" in name]) == 4
    before = None
    with adapted.disable_adapter():
        before = tiny.logits(adapted, tiny.batch())
    tiny.disturb(adapted)
    with adapted.disable_adapter():
        assert torch.equal(tiny.logits(adapted, tiny.batch()), before)


def test_what_is_saved_is_the_same_in_every_process(tmp_path: Path) -> None:
    """With 20 targets and more PEFT makes a set of their endings, whose order changes from process to process."""
    model = Adapter(reduction_factor=4).apply(tiny.build("bert", tiny.MASKED, num_hidden_layers=12))
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert said["target_modules"] == sorted(said["target_modules"])
    assert said["peft_type"] == "FINERY_BOTTLENECK"
    assert (tmp_path / "finery_bottleneck.py").is_file()


def test_a_parallel_adapter_whose_network_was_bypassed_says_so() -> None:
    model = tuned(kind="parallel")
    layer = next(module for module in model.modules() if isinstance(module, BottleneckLayer))
    with pytest.raises(RuntimeError, match="the layer that begins its feed-forward network was not"):
        layer(torch.zeros(1, 48))


def test_an_adapter_is_not_named_like_its_weights() -> None:
    """PEFT warns when a name lies within the prefix: the usual names must not."""
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for name in ("default", "mrpc", "sst2", "task-1"):
            get_peft_model(tiny.build("bert", tiny.MASKED), BottleneckConfig(reduction_factor=4), adapter_name=name)


def test_our_own_classes_replace_those_of_a_copy_that_was_imported_before() -> None:
    for table in (mapping.PEFT_TYPE_TO_CONFIG_MAPPING, mapping.PEFT_TYPE_TO_TUNER_MAPPING):
        table["FINERY_BOTTLENECK"] = object  # as `import finery_bottleneck` beside an adapter would
    bottleneck.register(replace=False)
    assert mapping.PEFT_TYPE_TO_CONFIG_MAPPING["FINERY_BOTTLENECK"] is object
    bottleneck.register()
    assert mapping.PEFT_TYPE_TO_CONFIG_MAPPING["FINERY_BOTTLENECK"] is bottleneck.BottleneckConfig
    assert mapping.PEFT_TYPE_TO_TUNER_MAPPING["FINERY_FUSION"] is bottleneck.BottleneckModel
    assert mapping.PEFT_TYPE_TO_PREFIX_MAPPING["FINERY_BOTTLENECK"] == "bottleneck_"


def test_peft_still_refuses_our_names_in_its_own_way() -> None:
    """When this fails, `register_peft_method` takes any name and `register` should use it."""
    from peft.utils import register_peft_method

    with pytest.raises(ValueError, match="Unknown PEFT type FINERY_X"):
        register_peft_method(
            name="finery_x", config_cls=bottleneck.BottleneckConfig, model_cls=bottleneck.BottleneckModel
        )
