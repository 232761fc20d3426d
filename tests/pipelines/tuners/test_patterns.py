"""A pattern names modules by their last words or by a glob, and one that names nothing is answered."""

from __future__ import annotations

import pytest

from pipelines.core.errors import ModelError
from pipelines.tuners.full import matching
from tests import tiny


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
