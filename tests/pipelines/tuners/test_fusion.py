"""Fusion: what it mixes, what learns, and which adapters it can be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.tuners import bottleneck
from pipelines.tuners.adapter import Adapter
from pipelines.tuners.fusion import Fusion
from tests import tiny

STAGE = "  - {stage: supervised, id: %s, from: %s, task: glue/mrpc, max_length: 32, tuner: %s}\n"
START = "name: x\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: pretrain, datasets: [{path: builtin/python-docs}], block_size: 32}\n"


def recipe(*stages: tuple[str, str, str]) -> str:
    return START + "".join(STAGE % stage for stage in stages)


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    """Two trained adapters of different kinds for one base, with heads of different tasks."""
    folders = {}
    for seed, (name, kind, head) in enumerate((("one", "pfeiffer", tiny.TWO), ("other", "parallel", tiny.THREE))):
        model = Adapter(kind=kind, reduction_factor=4).apply(tiny.build("bert", head))
        tiny.disturb(model, seed=seed)
        model.save_pretrained(tmp_path / name)
        folders[name] = tmp_path / name
    return folders


def fused(adapters: dict[str, Path], **named: Any) -> tuple[Fusion, Any]:
    tuner = Fusion(adapters=tuple(adapters), **named).given(adapters)
    return tuner, tuner.apply(tiny.build("bert", tiny.TWO))


def change(folder: Path, place: str, output: torch.Tensor, entered: torch.Tensor, parallel: bool) -> torch.Tensor:
    """What a saved adapter adds, from its file."""
    from safetensors.torch import load_file

    weights = load_file(folder / "adapter_model.safetensors")
    down, down_bias, up, up_bias = (
        weights[f"base_model.model.{place}.bottleneck_adapters.{name}"]
        for name in ("down.weight", "down.bias", "up.weight", "up.bias")
    )
    read = entered if parallel else output
    return (4.0 if parallel else 1.0) * (torch.relu(read @ down.T + down_bias) @ up.T + up_bias)


def test_a_place_computes_the_attention_of_the_paper(adapters: dict[str, Path]) -> None:
    """Section 3.2: s = softmax(hQ · zK), z' = zV, o = s z', for each token alone."""
    _, model = fused(adapters)
    tiny.disturb(model)
    place = "bert.encoder.layer.1.output.dense"
    layer = model.get_base_model().get_submodule(place).eval()
    fusion = layer.bottleneck_adapters["default"]
    generator = torch.Generator().manual_seed(2)
    entered, wide = torch.randn(2, 3, 32, generator=generator), torch.randn(2, 3, 48, generator=generator)
    with torch.no_grad():
        layer.entered = entered
        found = layer(wide)
        h = layer.base_layer(wide)
        answers = [
            change(adapters["one"], place, h, entered, False),
            change(adapters["other"], place, h, entered, True),
        ]
        for row in range(2):
            for token in range(3):
                asks = fusion.query.weight @ h[row, token] + fusion.query.bias
                scores = torch.stack([asks @ (fusion.key.weight @ z[row, token] + fusion.key.bias) for z in answers])
                shares = scores.exp() / scores.exp().sum()
                mixed = sum(
                    share * (fusion.value.weight @ z[row, token]) for share, z in zip(shares, answers, strict=True)
                )
                torch.testing.assert_close(found[row, token], h[row, token] + mixed)


def test_only_the_mix_and_the_new_head_learn(adapters: dict[str, Path]) -> None:
    _, model = fused(adapters)
    for _ in range(2):
        learning = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        mix = {name: weight for name, weight in learning.items() if "bottleneck_" in name}
        assert not [name for name in mix if "members" in name]
        assert sum(weight.numel() for weight in mix.values()) == 2 * (
            3 * 32 * 32 + 2 * 32
        )  # Q and K with biases, V without; two layers
        assert all("modules_to_save" in name for name in learning.keys() - mix.keys())
        with model.disable_adapter():  # PEFT switches what learns off and on again
            pass
        model.set_adapter("default")


def test_the_adapters_come_unchanged_and_are_saved_with_the_mix(adapters: dict[str, Path], tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file

    _, model = fused(adapters)
    tiny.disturb(model)
    wanted = tiny.logits(model, tiny.batch())
    model.save_pretrained(tmp_path / "fused")
    saved = load_file(tmp_path / "fused/adapter_model.safetensors")
    for number, folder in enumerate(adapters.values()):
        for key, value in load_file(folder / "adapter_model.safetensors").items():
            if "bottleneck_adapters" in key:
                assert torch.equal(
                    saved[key.replace("bottleneck_adapters.", f"bottleneck_adapters.members.{number}.")], value
                )
    again = PeftModel.from_pretrained(tiny.build("bert", tiny.TWO), tmp_path / "fused")
    assert torch.equal(tiny.logits(again, tiny.batch()), wanted)
    assert not [name for name, weight in again.named_parameters() if weight.requires_grad]


def test_value_is_held_near_the_identity(adapters: dict[str, Path]) -> None:
    """The authors' code adds 0.01 times the squared distance, summed over all places."""
    tuner, model = fused(adapters)
    assert tuner.penalty(model).item() == 0.0
    values = [module.value.weight for module in model.modules() if isinstance(module, bottleneck.FusedBottlenecks)]
    with torch.no_grad():
        values[0][0, 1] += 3.0
        values[1][2, 2] += 1.0
    assert tuner.penalty(model).item() == pytest.approx(0.01 * (9.0 + 1.0))
    tuner.penalty(model).backward()
    assert values[0].grad[0, 1].item() == pytest.approx(0.01 * 2 * 3.0)
    assert fused(adapters, value_regularization=0.0)[0].penalty(model) is None


def test_adapters_of_another_architecture_are_refused(adapters: dict[str, Path]) -> None:
    tuner = Fusion(adapters=tuple(adapters)).given(adapters)
    with pytest.raises(
        ModelError,
        match=r"stage 'one' stands at bert\.encoder\S+, which DistilBertForSequenceClassification does not have",
    ):
        tuner.apply(tiny.build("distilbert", tiny.TWO))


def test_before_its_adapters_are_trained_it_says_so() -> None:
    with pytest.raises(ModelError, match="are known once its adapters are trained: one, other"):
        Fusion(adapters=("one", "other")).apply(tiny.build("bert", tiny.TWO))


def mistakes(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        loads(text)
    return [f"{mistake.key} {mistake.message}" for mistake in caught.value.mistakes]


ONE = ("one", "pretrain", "adapter")


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            (ONE, ("mix", "pretrain", "{name: fusion, adapters: [one, too]}")),
            "'too' is no earlier stage with the tuner adapter",
        ),
        (
            (ONE, ("two", "pretrain", "lora"), ("mix", "pretrain", "{name: fusion, adapters: [one, two]}")),
            "Those are: one",
        ),
        ((ONE, ("mix", "pretrain", "{name: fusion, adapters: [one, one]}")), "names a stage twice"),
        ((ONE, ("mix", "pretrain", "{name: fusion, adapters: [one]}")), "must have at least 2"),
        ((ONE, ("mix", "pretrain", "fusion")), "is missing"),
        (
            (
                ONE,
                ("two", "pretrain", "{name: adapter, train_layer_norm: true}"),
                ("mix", "pretrain", "{name: fusion, adapters: [one, two]}"),
            ),
            "'two' has train_layer_norm: it changed the model itself",
        ),
        (
            (
                ONE,
                ("whole", "pretrain", "full"),
                ("two", "whole", "adapter"),
                ("mix", "pretrain", "{name: fusion, adapters: [one, two]}"),
            ),
            "'two' adapts the model of 'whole', but this stage reads that of 'pretrain'; write from: whole",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_named_in_the_recipe(
    stages: tuple[tuple[str, str, str], ...], sentence: str
) -> None:
    found = mistakes(recipe(*stages))
    assert len(found) == 1, found
    assert sentence in found[0]


def test_a_base_that_lies_nowhere_is_refused() -> None:
    text = "name: x\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n" + "".join(
        STAGE % (name, "model", tuner)
        for name, tuner in (("one", "adapter"), ("two", "adapter"), ("mix", "{name: fusion, adapters: [one, two]}"))
    )
    assert ["pretrain the model first" in each for each in mistakes(text)] == [True]


def test_the_stage_reads_the_stages_of_its_adapters() -> None:
    text = recipe(ONE, ("two", "pretrain", "adapter"), ("mix", "pretrain", "{name: fusion, adapters: [one, two]}"))
    loaded = loads(text)
    assert loaded.stages[-1].reads(loaded) == ("pretrain", "one", "two")
    assert loads(loaded.to_yaml()) == loaded
