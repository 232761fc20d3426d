"""LoRA: which layers get an update, what it computes, and what PiSSA and OLoRA take over and leave behind."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pydantic import ValidationError
from torch.nn.functional import linear

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.models import opening
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.covering import covering

DIM = 32


def trained(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def updated(model: Any) -> set[str]:
    """Names of the layers with an update, without PEFT's prefix."""
    return {
        name.removeprefix("base_model.model.").removesuffix(".lora_A.default")
        for name, _ in model.named_modules()
        if name.endswith(".lora_A.default")
    }


def test_named_targets_get_an_update_and_no_others() -> None:
    model = LoRA(target_modules=("query", "value"), r=4).apply(tiny.build("bert", tiny.THREE))
    assert updated(model) == {
        f"bert.encoder.layer.{n}.attention.self.{name}" for n in range(2) for name in ("query", "value")
    }
    one = LoRA(target_modules=("layer.1.attention.self.key",)).apply(tiny.build("bert", tiny.THREE))
    assert updated(one) == {"bert.encoder.layer.1.attention.self.key"}


@pytest.mark.parametrize("family", ["finery", "bert", "albert", "modernbert"])
def test_all_linear_leaves_heads_alone(family: str) -> None:
    for head in (tiny.MASKED, tiny.TWO):
        model = tiny.build(family, head)
        prefix = f"{model.base_model_prefix}."
        names = updated(LoRA().apply(model))
        assert names
        assert all(name.startswith(prefix) and "pooler" not in name for name in names)


def test_the_update_is_alpha_over_r_times_b_a() -> None:
    model = LoRA(r=4, lora_alpha=12, target_modules=("query",)).apply(tiny.build("bert", tiny.THREE))
    tiny.disturb(model)
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    a, b, base = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.base_layer
    assert a.shape == (4, 32)
    assert b.shape == (32, 4)
    hidden = torch.randn(2, 5, 32)
    expected = linear(hidden, base.weight + 12 / 4 * b @ a, base.bias)
    torch.testing.assert_close(layer(hidden), expected, rtol=1e-5, atol=1e-5)


def test_rank_stabilised_updates_are_scaled_by_the_root() -> None:
    model = LoRA(r=4, lora_alpha=12, use_rslora=True, target_modules=("query",)).apply(tiny.build("bert", tiny.THREE))
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    assert layer.scaling["default"] == pytest.approx(12 / 4**0.5)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("finery", {"use_dora": True, "use_rslora": True}),
        ("bert", {"use_dora": True}),
        ("bert", {"bias": "all"}),
        ("finery", {"bias": "lora_only", "lora_dropout": 0.3}),
        ("finery", {"modules_to_save": ("embeddings",)}),
    ],
    ids=str,
)
def test_every_variant_begins_at_the_base_and_comes_back_merged(
    family: str, words: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny.build(family, tiny.THREE)
    model.save_pretrained(tmp_path / "base")
    model = opening.open_folder(tmp_path / "base", tiny.THREE, seed=0)
    before = tiny.logits(model, tiny.batch())
    tuned = LoRA(r=2, **words).apply(model)
    torch.testing.assert_close(tiny.logits(tuned, tiny.batch()), before, rtol=1e-5, atol=1e-6)  # DoRA divides by a norm
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    assert (wanted - before).abs().max() > 1e-3
    tuned.save_pretrained(tmp_path / "tuned")
    kept = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=0, merge=False)
    torch.testing.assert_close(tiny.logits(kept, tiny.batch()), wanted, rtol=1e-6, atol=1e-6)
    merged = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=0)
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-4, atol=1e-5)


def test_modules_to_save_are_trained_whole_beside_the_new_ones() -> None:
    plain = LoRA(r=2).apply(tiny.build("bert", tiny.THREE))
    more = LoRA(r=2, modules_to_save=("embeddings.LayerNorm",)).apply(tiny.build("bert", tiny.THREE))
    assert trained(more) == trained(plain) + 2 * DIM


@pytest.mark.parametrize(
    ("family", "known"),
    [
        ("bert", "dense, key, query, value"),
        ("gpt2", "c_attn, c_fc, c_proj"),
        ("finery", "intermediate, key, output, query, value"),
    ],
)
def test_a_target_that_is_not_there_is_answered_with_what_is(family: str, known: str) -> None:
    for targets in (("nope",), ("nope", known.split(", ")[-1])):
        with pytest.raises(IncompatibleError) as caught:
            LoRA(target_modules=targets).apply(tiny.build(family, tiny.THREE))
        assert str(caught.value) == (
            f"lora.target_modules nope: no linear layer of the model is named so; those that can have an update are {known}"
        )


def test_a_module_to_save_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        IncompatibleError, match=r"lora.modules_to_save \['nope'\] match no module of the model; it has LayerNorm, "
    ):
        LoRA(modules_to_save=("nope",)).apply(tiny.build("bert", tiny.THREE))


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ({"r": 0}, "r"),
        ({"lora_alpha": 0.0}, "lora_alpha"),
        ({"lora_dropout": 1.0}, "lora_dropout"),
        ({"target_modules": ()}, "target_modules"),
        ({"target_modules": "query"}, "target_modules"),
        ({"bias": "some"}, "bias"),
        ({"rank": 8}, "rank"),
        (
            {"init_lora_weights": "pizza"},
            'is "pizza", must be true, or one of gaussian, orthogonal, pissa, olora, or pissa_niter_N',
        ),
        ({"init_lora_weights": False}, "is false, must be true"),
        ({"init_lora_weights": "pissa_niter_0"}, "must be true"),
        ({"init_lora_weights": "orthogonal", "r": 3}, "r: is 3, must be even for init_lora_weights: orthogonal"),
        ({"init_lora_weights": "orthogonal", "rank_pattern": {"query": 5}}, "rank_pattern.query: is 5, must be even"),
        ({"rank_pattern": {"query": 0}}, "rank_pattern.query"),
        ({"alpha_pattern": {"query[": 2.0}}, "is no regular expression"),
        ({"layers_to_transform": -1}, "must be the position of a layer"),
        ({"layers_to_transform": ()}, "must be the position of a layer"),
        ({"layers_pattern": ("layer",)}, "says where layers_to_transform counts"),
        ({"lora_plus_ratio": 0.0}, "lora_plus_ratio"),
    ],
)
def test_settings_out_of_bounds_are_refused(words: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        LoRA.model_validate({"name": "lora", **words})


@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert", "t5", "bart", "finery"])
def test_a_layer_that_is_not_there_is_a_mistake_of_the_recipe(family: str) -> None:
    config = tiny.build(family, Head("seq2seq_lm") if family in ("t5", "bart") else tiny.THREE).config
    words = {**config.to_dict(), "model_type": config.model_type}
    assert LoRA(layers_to_transform=1).misfit(words, "any") is None
    assert LoRA(layers_to_transform=(1, 2)).misfit(words, "any") == (
        "has layers_to_transform 2, but the model's 2 layers are 0 to 1"
    )
    assert LoRA(layers_to_transform=99).misfit({"model_type": "unknown"}, "any") is None


@pytest.mark.parametrize(
    ("family", "head", "count"),
    [
        ("bert", tiny.THREE, 6),
        ("distilbert", tiny.THREE, 6),
        ("electra", tiny.THREE, 6),
        ("deberta-v2", tiny.THREE, 6),
        ("modernbert", tiny.THREE, 4),
        ("gpt2", tiny.THREE, 4),
        ("llama", tiny.THREE, 7),
        ("xlnet", tiny.THREE, 2),
        ("t5", Head("seq2seq_lm"), 6 + 10),
        ("bart", Head("seq2seq_lm"), 6 + 10),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_all_linear_is_every_layer_of_the_body_on_any_architecture(family: str, head: Head, count: int) -> None:
    """Two layers of `count` matrices: XLNet's attention multiplies bare parameters; a decoder beside an encoder has 4 more."""
    model = tiny.build(family, head)
    names = updated(LoRA(r=2).apply(model))
    inside = {name for name in names if any(part.isdigit() for part in name.split("."))}
    assert len(inside) == 2 * count
    assert names - inside == ({"electra.embeddings_project"} if family == "electra" else set())


def test_albert_shares_one_update_among_its_layers() -> None:
    names = updated(LoRA(r=2).apply(tiny.build("albert", tiny.THREE)))
    group = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    attention = {f"{group}.attention.{name}" for name in ("query", "key", "value", "dense")}
    assert names == attention | {f"{group}.ffn", f"{group}.ffn_output", "albert.encoder.embedding_hidden_mapping_in"}


def test_excluded_modules_are_left_out_by_their_ends_or_by_what_holds_them() -> None:
    model = LoRA(exclude_modules=("attention", "layer.0.output.dense")).apply(tiny.build("bert", tiny.THREE))
    assert updated(model) == {
        f"bert.encoder.layer.{name}.dense" for name in ("0.intermediate", "1.intermediate", "1.output")
    }
    with pytest.raises(
        IncompatibleError,
        match=r"lora.exclude_modules nope: none of the target layers is named so; they are dense, key, query, value",
    ):
        LoRA(exclude_modules=("nope",)).apply(tiny.build("bert", tiny.THREE))
    with pytest.raises(IncompatibleError, match="leaves no layer of the model to learn"):
        LoRA(exclude_modules=("bert",)).apply(tiny.build("bert", tiny.THREE))


def test_layers_to_transform_are_counted_as_peft_counts_them() -> None:
    from peft import LoraConfig, get_peft_model

    ours = updated(
        LoRA.model_validate({"target_modules": ("query", "value"), "layers_to_transform": 1}).apply(
            tiny.build("bert", tiny.THREE)
        )
    )
    config = LoraConfig(target_modules=["query", "value"], layers_to_transform=[1], layers_pattern="layer")
    assert (
        ours
        == updated(get_peft_model(tiny.build("bert", tiny.THREE), config))
        == {f"bert.encoder.layer.1.attention.self.{name}" for name in ("query", "value")}
    )
    both = updated(
        LoRA(target_modules=("q",), layers_to_transform=(0,), layers_pattern=("block",)).apply(
            tiny.build("t5", Head("seq2seq_lm"))
        )
    )
    assert both == {
        "encoder.block.0.layer.0.SelfAttention.q",
        "decoder.block.0.layer.0.SelfAttention.q",
        "decoder.block.0.layer.1.EncDecAttention.q",
    }
    with pytest.raises(
        IncompatibleError, match=r"lora.layers_to_transform has \[2\], but the model's layers are numbered 0 to 1"
    ):
        LoRA(layers_to_transform=(1, 2)).apply(tiny.build("bert", tiny.THREE))
    with pytest.raises(
        IncompatibleError, match=r"lora.layers_pattern block: no stack of layers is called so; the model has layer"
    ):
        LoRA(layers_to_transform=(0,), layers_pattern=("block",)).apply(tiny.build("bert", tiny.THREE))


def test_patterns_give_single_layers_their_own_rank_and_alpha() -> None:
    block = LoRA(r=4, lora_alpha=8, rank_pattern={"query": 2, "layer.1.output.dense": 6}, alpha_pattern={"query": 3.0})
    model = block.apply(tiny.build("bert", tiny.THREE)).base_model.model.bert.encoder
    query, key, output = (
        model.layer[1].attention.self.query,
        model.layer[1].attention.self.key,
        model.layer[1].output.dense,
    )
    assert [each.lora_A["default"].weight.shape[0] for each in (query, key, output)] == [2, 4, 6]
    assert [each.scaling["default"] for each in (query, key, output)] == [3 / 2, 8 / 4, 8 / 6]
    for words in ({"rank_pattern": {"nope": 2}}, {"alpha_pattern": {"nope": 2.0}}):
        with pytest.raises(
            IncompatibleError, match="pattern nope: no target layer is named so; they are dense, key, query, value"
        ):
            LoRA(**words).apply(tiny.build("bert", tiny.THREE))


def test_lora_plus_is_pefts_own_grouping_of_the_two_matrices() -> None:
    from peft.optimizers import create_loraplus_optimizer

    model = LoRA(r=2, lora_plus_ratio=16, target_modules=("query",)).apply(tiny.build("bert", tiny.THREE))
    rates = LoRA(lora_plus_ratio=16).rates(model)
    names = {id(weight): name for name, weight in model.named_parameters()}
    theirs = create_loraplus_optimizer(model, torch.optim.SGD, lr=1e-3, loraplus_lr_ratio=16)
    fast = {
        names[id(weight)]
        for group in theirs.param_groups
        if group["lr"] == pytest.approx(1.6e-2)
        for weight in group["params"]
    }
    matrices = {
        name for name in fast if "lora_" in name
    }  # PEFT's vectors of whole modules learn fast too, the paper's do not
    assert set(rates) == matrices
    assert len(rates) == 2
    assert set(rates.values()) == {16}
    assert LoRA().rates(model) == {}


VARIANTS: list[dict[str, Any]] = [
    {},
    {"use_dora": True},
    {"use_rslora": True, "rank_pattern": {"query|c_attn": 2}, "alpha_pattern": {"key|c_fc": 3.0}},
]
STARTS = ("pissa", "pissa_niter_16", "olora")


def layer(model: Any, family: str) -> Any:
    body = model.base_model.model
    return body.transformer.h[0].mlp.c_fc if family == "gpt2" else body.bert.encoder.layer[0].attention.self.query


def base(family: str, folder: Path) -> Any:
    if not folder.exists():
        tiny.build(family, tiny.THREE).save_pretrained(folder)
    return opening.open_folder(folder, tiny.THREE, seed=0)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_the_matrices_are_those_of_peft(start: str, tmp_path: Path) -> None:
    ours = LoRA(r=4, lora_alpha=6, init_lora_weights=start, target_modules=("query",)).apply(
        base("bert", tmp_path / "base")
    )
    config = LoraConfig(r=4, lora_alpha=6, init_lora_weights=start, target_modules=["query"])
    theirs = get_peft_model(base("bert", tmp_path / "base"), config)
    mine, other = layer(ours, "bert"), layer(theirs, "bert")
    product, expected = (each.lora_B["default"].weight @ each.lora_A["default"].weight for each in (mine, other))
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(product, expected, **close)  # the factors may differ in sign
    torch.testing.assert_close(mine.base_layer.weight, other.base_layer.weight, **close)


def test_pissa_leaves_the_small_singular_values_to_the_base(tmp_path: Path) -> None:
    whole = base("gpt2", tmp_path / "base").transformer.h[0].mlp.c_fc.weight.detach().clone()
    tuned = LoRA(r=4, init_lora_weights="pissa").apply(base("gpt2", tmp_path / "base"))
    values = torch.linalg.svdvals(whole)
    rest = torch.linalg.svdvals(layer(tuned, "gpt2").base_layer.weight)
    torch.testing.assert_close(rest[:28], values[4:], rtol=1e-4, atol=1e-6)
    assert rest[28:].max() < 1e-5


def test_the_fast_start_finds_what_the_exact_one_does_where_singular_values_fall(tmp_path: Path) -> None:
    found = []
    for start in ("pissa", "pissa_niter_4"):
        model = base("bert", tmp_path / "base")
        with torch.no_grad():
            weight = model.bert.encoder.layer[0].attention.self.query.weight
            left, _, right = torch.linalg.svd(weight)
            weight.copy_(left @ torch.diag(2.0 ** -torch.arange(32)) @ right)
        tuned = layer(LoRA(r=4, init_lora_weights=start).apply(model), "bert")
        found.append(tuned.lora_B["default"].weight @ tuned.lora_A["default"].weight)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_olora_begins_with_orthonormal_columns_on_a_transposed_matrix_too(tmp_path: Path) -> None:
    tuned = layer(LoRA(r=4, init_lora_weights="olora").apply(base("gpt2", tmp_path / "base")), "gpt2")
    b = tuned.lora_B["default"].weight
    assert b.shape == (128, 4)
    assert tuned.lora_A["default"].weight.shape == (4, 32)
    torch.testing.assert_close(b.T @ b, torch.eye(4), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "start", "words"),
    covering(
        product(["bert", "gpt2"], STARTS, VARIANTS),
        name=lambda family, start, words: f"{family}-{start}-{'-'.join(words) or 'plain'}",
    ),
)
def test_what_is_saved_is_plain_lora_on_the_base_as_it_was(
    family: str, start: str, words: dict[str, Any], tmp_path: Path
) -> None:
    block = LoRA(r=4, init_lora_weights=start, **words)
    model = base(family, tmp_path / "base")
    before = tiny.logits(model, tiny.batch())
    tuned = block.apply(model)
    torch.testing.assert_close(tiny.logits(tuned, tiny.batch()), before, rtol=1e-5, atol=1e-6)
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    assert (wanted - before).abs().max() > 1e-3
    block.save(tuned, tmp_path / "tuned")
    config = json.loads((tmp_path / "tuned" / "adapter_config.json").read_text())
    assert config["r"] == 8
    assert config["init_lora_weights"] is True
    alone = PeftModel.from_pretrained(base(family, tmp_path / "base"), str(tmp_path / "tuned"))
    torch.testing.assert_close(tiny.logits(alone, tiny.batch()), wanted, rtol=1e-4, atol=1e-6)
    with alone.disable_adapter():
        assert torch.equal(tiny.logits(alone, tiny.batch()), before)
    merged = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=0)
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", STARTS)
def test_the_same_base_is_found_again_for_a_checkpoint_of_the_middle(start: str, tmp_path: Path) -> None:
    block = LoRA(r=4, init_lora_weights=start)
    first = block.apply(base("bert", tmp_path / "base"))
    tiny.disturb(first)
    first.save_pretrained(tmp_path / "middle")  # as the Trainer does
    torch.manual_seed(12345)
    again = block.apply(base("bert", tmp_path / "base"))
    again.load_adapter(str(tmp_path / "middle"), "default", is_trainable=True)
    assert torch.equal(tiny.logits(again, tiny.batch()), tiny.logits(first, tiny.batch()))
    for folder, model in (("a", first), ("b", again)):
        block.save(model, tmp_path / folder)
    saved = [(tmp_path / folder / "adapter_model.safetensors").read_bytes() for folder in ("a", "b")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("start", STARTS)
def test_a_start_leaves_the_random_numbers_of_training_alone(start: str, tmp_path: Path) -> None:
    drawn = []
    for begins in (True, start):
        model = base("bert", tmp_path / "base")
        torch.manual_seed(3)
        LoRA(r=4, init_lora_weights=begins).apply(model)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_a_rank_beyond_a_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        IncompatibleError,
        match=r"lora: the rank of 'bert.encoder.layer.0.attention.self.query' is 40, but its matrix of 32 x 32 has no more than 32",
    ):
        LoRA(r=40, init_lora_weights="pissa").apply(base("bert", tmp_path / "base"))
