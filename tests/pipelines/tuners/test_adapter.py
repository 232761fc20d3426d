"""What a recipe may say about bottleneck adapters, and how many weights learn."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.tuners.adapter import Adapter, NonLinearity
from tests import tiny

RECIPE = (
    "name: x\nmodel: {architecture: %s}\nstages: [{stage: supervised, task: glue/mrpc, max_length: 32, tuner: %s}]\n"
)


def mistakes(tuner: str, architecture: str = "{preset: bert-tiny}") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        loads(RECIPE % (architecture, tuner))
    return [f"{mistake.key} {mistake.message}" for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("tuner", "key", "sentence"),
    [
        ("{name: adapter, kind: pfeifer}", "tuner.kind", "Did you mean 'pfeiffer'?"),
        ("{name: adapter, non_linearity: softplus}", "tuner.non_linearity", "must be one of relu, gelu"),
        (
            "{name: adapter, bottleneck_size: 8, reduction_factor: 4}",
            "tuner.bottleneck_size",
            "say the same thing twice",
        ),
        ("{name: adapter, bottleneck_size: 0}", "tuner.bottleneck_size", "must be at least 1"),
        ("{name: adapter, init_std: 0.1}", "tuner.init_std", "is for init: near-identity"),
        ("{name: adapter, layers: [0, 0]}", "tuner.layers", "must be different numbers from 0 on"),
        ("{name: adapter, layers: [-1]}", "tuner.layers", "must be different numbers from 0 on"),
        ("{name: adapter, adapter_dropout: 1}", "tuner.adapter_dropout", "must be less than 1"),
        ("{name: adapter, r: 8}", "tuner.r", "unknown key 'r'"),
        ("{name: adapter, layers: [1, 2]}", "tuner", "layer 2, but the model's 2 layers are 0 to 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_where_it_stands(tuner: str, key: str, sentence: str) -> None:
    found = mistakes(tuner)
    assert len(found) == 1
    assert found[0].startswith(f"stages.supervised.{key} ")
    assert sentence in found[0]


def test_an_architecture_without_a_place_is_refused_before_anything_loads() -> None:
    xlnet = "{model_type: xlnet, d_model: 32, n_layer: 2, n_head: 2, d_inner: 48}"
    assert "use kind: pfeiffer" in mistakes("adapter", xlnet)[0]
    assert loads(RECIPE % (xlnet, "{name: adapter, kind: parallel}"))
    assert (
        "every token passes"
        in mistakes("{name: adapter, kind: pfeiffer}", "{model_type: mixtral, num_hidden_layers: 2}")[0]
    )


def test_layers_that_an_open_model_does_not_have_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"the tuner adapter is to stand in layers \[7\], but the last layer of BertForMaskedLM is 1"
    ):
        Adapter(layers=(7,)).apply(tiny.build("bert", tiny.MASKED))


def test_every_non_linearity_is_one_of_transformers() -> None:
    from transformers.activations import ACT2FN

    assert set(NonLinearity.__args__) <= set(ACT2FN)


@pytest.mark.parametrize(
    ("settings", "places", "size"),
    [
        ({"kind": "houlsby", "reduction_factor": 4}, 4, 8),
        ({"kind": "pfeiffer", "bottleneck_size": 3}, 2, 3),
        ({"kind": "parallel", "reduction_factor": 5}, 2, 6),
        ({"kind": "houlsby", "bottleneck_size": 5, "layers": (1,)}, 2, 5),
        ({"kind": "pfeiffer", "reduction_factor": 64}, 2, 1),
    ],
)
def test_it_learns_2md_plus_d_plus_m_weights_a_place(settings: dict[str, Any], places: int, size: int) -> None:
    """Houlsby et al. 2019, section 2.1, with d the model's width (32) and m the adapter's."""
    model = Adapter(**settings).apply(tiny.build("bert", tiny.MASKED))
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == places * (
        2 * size * 32 + 32 + size
    )


def test_the_kinds_come_with_the_settings_of_their_authors() -> None:
    for kind, non_linearity, scaling in (
        ("houlsby", "gelu", 1.0),
        ("pfeiffer", "relu", 1.0),
        ("parallel", "relu", 4.0),
    ):
        config = Adapter(kind=kind).apply(tiny.build("bert", tiny.MASKED)).peft_config["default"]
        assert (config.non_linearity, config.scaling) == (non_linearity, scaling)
