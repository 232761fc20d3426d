"""Full fine-tuning: what learns by name and by epoch, each layer's rate, and the slanted triangular schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.tuners.full import Full, GradualUnfreezing, SlantedTriangular, matching
from tests import tiny

HEAD = {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}


def learning(model: Any) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def of(model: Any, *starts: str) -> set[str]:
    return {name for name, _ in model.named_parameters() if name.startswith(starts)}


def test_every_weight_learns_even_those_frozen_before() -> None:
    model = tiny.build("bert", tiny.TWO)
    model.bert.embeddings.requires_grad_(False)
    assert Full().apply(model) is model
    assert all(weight.requires_grad for weight in model.parameters())
    assert not Full.adapts
    assert Full().rates(model) == {}
    assert Full().factor(0, 100) is None
    assert not Full().unfreezes


def test_each_layer_learns_2_6_times_slower_than_the_one_above() -> None:
    """Howard and Ruder 2018, section 3.2: the head at the full rate, then 1 / 2.6, 1 / 2.6², 1 / 2.6³."""
    model = Full(discriminative=2.6).apply(tiny.build("bert", tiny.TWO))
    rates = Full(discriminative=2.6).rates(model)
    assert rates.keys() == {name for name, _ in model.named_parameters()}
    expected = [
        (HEAD, 1.0),
        (of(model, "bert.encoder.layer.1."), 1 / 2.6),
        (of(model, "bert.encoder.layer.0."), 1 / 6.76),
        (of(model, "bert.embeddings."), 1 / 17.576),
    ]
    for names, rate in expected:
        assert [rates[name] for name in names] == pytest.approx([rate] * len(names))
    assert sum(len(names) for names, _ in expected) == len(rates)


def test_one_more_layer_wakes_with_every_epoch() -> None:
    model, tuner = tiny.build("bert", tiny.TWO), Full(gradual_unfreezing=True)
    assert tuner.unfreezes
    tuner.apply(model)
    assert all(
        weight.requires_grad for weight in model.parameters()
    )  # the optimizer is made now, of all that will learn
    awake = set()
    for epoch, more in enumerate(
        (
            HEAD,
            of(model, "bert.encoder.layer.1."),
            of(model, "bert.encoder.layer.0."),
            of(model, "bert.embeddings."),
            set(),
        )
    ):
        awake |= more
        tuner.unfreeze(model, epoch)
        assert learning(model) == awake
    tuner.unfreeze(model, 1)  # a resume may begin anywhere
    assert learning(model) == HEAD | of(model, "bert.encoder.layer.1.")


def test_layers_that_too_few_epochs_never_wake_are_named() -> None:
    model, tuner = tiny.build("bert", tiny.TWO), Full(gradual_unfreezing=True)
    tuner.apply(model)
    assert tuner.never_unfrozen(model, 4) is None
    assert (
        tuner.never_unfrozen(model, 3)
        == "full.gradual_unfreezing: 1 of 4 layers (embeddings) never learn in 3 epochs; num_train_epochs: 4 reaches all"
    )
    assert "2 of 4 layers (embeddings to bert.encoder.layer.0) never learn in 2 epochs" in str(
        tuner.never_unfrozen(model, 2)
    )
    slow = Full(gradual_unfreezing={"epochs_per_layer": 2}, freeze=("embeddings",))
    assert "1 of 3 layers (bert.encoder.layer.0) never learn in 4 epochs; num_train_epochs: 5 reaches all" in str(
        slow.never_unfrozen(model, 4)
    )
    assert slow.never_unfrozen(model, 5) is None
    assert Full(freeze=("embeddings",)).never_unfrozen(model, 1) is None


def test_what_is_frozen_by_name_is_no_layer_that_waits() -> None:
    model, tuner = (
        tiny.build("bert", tiny.TWO),
        Full(gradual_unfreezing={"epochs_per_layer": 2}, freeze=("layer.1", "embeddings")),
    )
    tuner.apply(model)
    assert learning(model) == HEAD | of(model, "bert.encoder.layer.0.")
    for epoch, awake in (
        (0, HEAD),
        (1, HEAD),
        (2, HEAD | of(model, "bert.encoder.layer.0.")),
        (9, HEAD | of(model, "bert.encoder.layer.0.")),
    ):
        tuner.unfreeze(model, epoch)
        assert learning(model) == awake


def test_only_what_is_named_learns_and_the_new_head() -> None:
    model = tiny.build("bert", tiny.TWO)
    Full(train=("LayerNorm",)).apply(model)
    assert learning(model) == HEAD | {name for name, _ in model.named_parameters() if ".LayerNorm." in name}


def test_a_new_head_learns_whatever_is_frozen() -> None:
    model = tiny.build("bert", tiny.TWO)
    Full(freeze=("*",)).apply(model)
    assert learning(model) == HEAD
    model.finery_new_modules = []  # now the checkpoint brought everything
    with pytest.raises(ModelError, match=r"full.freeze \['\*'\] leaves no weight that learns; freeze less"):
        Full(freeze=("*",)).apply(model)


def test_a_pattern_that_means_nothing_or_only_the_new_head_is_refused() -> None:
    model = tiny.build("bert", tiny.TWO)
    with pytest.raises(
        ModelError, match=r"full.freeze 'nope' matches no weight of the model; it has the modules bert, embeddings"
    ):
        Full(freeze=("embeddings", "nope")).apply(model)
    with pytest.raises(ModelError, match=r"full.train 'nope' matches no weight"):
        Full(train=("nope",)).apply(model)
    with pytest.raises(ModelError, match="matches only weights that the checkpoint did not bring: they must learn"):
        Full(freeze=("classifier",)).apply(model)


@pytest.mark.parametrize(
    ("words", "key", "sentence"),
    [
        ({"discriminative": 1.0}, "discriminative", "greater than 1"),
        (
            {"gradual_unfreezing": 3},
            "gradual_unfreezing",
            r"is 3, must be true, or a mapping such as \{epochs_per_layer: 2\}",
        ),
        ({"gradual_unfreezing": {"epochs_per_layer": 0}}, "epochs_per_layer", "at least 1"),
        (
            {"slanted_triangular": "yes"},
            "slanted_triangular",
            r"is .*yes.*, must be true, or a mapping such as \{cut_frac: 0.1, ratio: 32\}",
        ),
        ({"freeze": ()}, "freeze", "at least 1"),
        (
            {"freeze": ("a",), "train": ("b",)},
            "train",
            "is given beside freeze; name either what is frozen or what learns",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    words: dict[str, Any], key: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError) as caught:
        Full(**words)
    import re

    assert key in str(caught.value)
    assert re.search(sentence, str(caught.value))


RECIPE = """\
name: two-schedules
model: {architecture: {preset: bert-tiny}}
stages:
  - stage: supervised
    task: builtin/python-docs
    tuner: {name: full, slanted_triangular: true}
    arguments: {num_train_epochs: 1, KEY}
"""


@pytest.mark.parametrize(
    "key",
    ["lr_scheduler_type: cosine", "warmup_steps: 0.1", "warmup_ratio: 0.1", "lr_scheduler_kwargs: {num_cycles: 2}"],
)
def test_a_second_schedule_is_refused_at_its_line(key: str) -> None:
    name = key.partition(":")[0]
    with pytest.raises(RecipeError) as caught:
        loads(RECIPE.replace("KEY", key))
    assert (
        f"stages.supervised.arguments.{name}: is given, but the tuner full brings a schedule of its own; leave one of the two out"
        in str(caught.value)
    )
    loads(RECIPE.replace(", KEY", ""))
    loads(RECIPE.replace("KEY", key).replace("slanted_triangular: true", "slanted_triangular: false"))


@pytest.fixture(scope="module")
def model() -> object:
    return tiny.build("bert", tiny.TWO, num_hidden_layers=11)


def test_a_module_means_everything_in_it(model: object) -> None:
    assert matching(model, ["bert.embeddings.LayerNorm"], "key") == {
        f"bert.embeddings.LayerNorm.{each}" for each in ("weight", "bias")
    }
    assert matching(model, ["word_embeddings"], "key") == {"bert.embeddings.word_embeddings.weight"}
    assert len(matching(model, ["embeddings"], "key")) == 5


def test_the_first_layer_is_not_the_tenth(model: object) -> None:
    found = matching(model, ["layer.1"], "key")
    assert len(found) == 16
    assert all(name.startswith("bert.encoder.layer.1.") for name in found)


def test_globs_reach_over_several_modules(model: object) -> None:
    assert matching(model, ["encoder.layer.0.*"], "key") == matching(model, ["encoder.layer.0"], "key")
    biases = matching(model, ["*.bias"], "key")
    assert biases == {name for name, _ in model.named_parameters() if name.endswith(".bias")}  # type: ignore[attr-defined]
    assert matching(model, ["attention.self.query.weight"], "key") == {
        f"bert.encoder.layer.{n}.attention.self.query.weight" for n in range(11)
    }


def test_several_patterns_add_up(model: object) -> None:
    assert matching(model, ["pooler", "classifier.bias"], "key") == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.bias",
    }


@pytest.mark.parametrize("pattern", ["embedding", "layer.11", "encoder.layer", "ncoder"])
def test_half_a_word_is_no_name(pattern: str, model: object) -> None:
    if pattern == "encoder.layer":  # a whole stack
        assert len(matching(model, [pattern], "key")) == 11 * 16
        return
    with pytest.raises(ModelError) as caught:
        matching(model, ["pooler", pattern], "full.freeze")
    assert str(caught.value).startswith(
        f"full.freeze '{pattern}' matches no weight of the model; it has the modules bert, embeddings, word_embeddings, "
    )


def test_one_more_layer_each_epoch_or_every_few() -> None:
    assert [GradualUnfreezing().unfrozen(epoch) for epoch in range(4)] == [1, 2, 3, 4]
    assert [GradualUnfreezing(epochs_per_layer=2).unfrozen(epoch) for epoch in range(5)] == [1, 1, 2, 2, 3]


def equation_three(t: int, total: int, cut_frac: float = 0.1, ratio: float = 32) -> float:
    """As printed, divided by the largest rate."""
    cut = math.floor(total * cut_frac)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize(("total", "cut_frac", "ratio"), [(100, 0.1, 32), (40, 0.25, 8), (2000, 0.1, 32)])
def test_it_is_the_equation_where_the_cut_is_whole(total: int, cut_frac: float, ratio: float) -> None:
    schedule = SlantedTriangular(cut_frac=cut_frac, ratio=ratio)
    found = [schedule.factor(step, total) for step in range(total)]
    assert found == pytest.approx([equation_three(step, total, cut_frac, ratio) for step in range(total)])


def test_the_numbers_by_hand() -> None:
    """200 steps: up over 20, down over 180, between 1/32 and 1."""
    factor = SlantedTriangular().factor
    assert factor(0, 200) == 1 / 32
    assert factor(10, 200) == (1 + 0.5 * 31) / 32
    assert factor(20, 200) == 1
    assert factor(110, 200) == (1 + 0.5 * 31) / 32
    assert factor(200, 200) == 1 / 32


@pytest.mark.parametrize("total", [1, 2, 3, 9, 19, 29, 101])
def test_the_rates_fall_to_the_end_and_never_below_the_smallest(total: int) -> None:
    found = [SlantedTriangular().factor(step, total) for step in range(total)]
    assert all(1 / 32 <= each <= 1 for each in found)
    top = found.index(max(found))
    assert all(later < earlier for earlier, later in zip(found[top:], found[top + 1 :], strict=False))
    assert min(equation_three(step, 19) for step in range(19)) < 0  # as printed, with a cut that is not whole


@pytest.mark.parametrize("words", [{"cut_frac": 0.0}, {"cut_frac": 1.0}, {"ratio": 1.0}])
def test_a_triangle_without_a_side_is_refused(words: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SlantedTriangular(**words)
