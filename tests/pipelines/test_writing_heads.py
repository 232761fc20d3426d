"""The head that a model writes with is told by what was saved, by its config, or by its architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.models import heads
from tests import tiny


def saved(folder: Path, model: Any, head: Head | None = None) -> Path:
    model.save_pretrained(str(folder))
    if head is not None:
        (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
    return folder


@pytest.mark.parametrize(
    ("model_type", "overrides", "kind"),
    [
        ("gpt2", {}, "causal_lm"),
        ("llama", {}, "causal_lm"),
        ("t5", {}, "seq2seq_lm"),
        ("finery", {"family": "decoder"}, "causal_lm"),
        ("finery", {"family": "encoder-decoder"}, "seq2seq_lm"),
    ],
)
def test_checkpoints_say_it_in_their_config(
    tmp_path: Path, model_type: str, overrides: dict[str, Any], kind: Any
) -> None:
    folder = saved(tmp_path, tiny.build(model_type, Head(kind), **overrides))
    assert heads.of_checkpoint(str(folder)) == Head(kind)
    assert heads.of_stage(folder, "one") == Head(kind)


def test_a_stage_says_it_in_its_own_file(tmp_path: Path) -> None:
    folder = saved(tmp_path, tiny.build("gpt2", tiny.TWO), tiny.TWO)
    with pytest.raises(
        ModelError, match="the model of 'classes' writes no texts, its head is for sequence classification"
    ):
        heads.of_stage(folder, "classes")
    assert heads.of_stage(saved(tmp_path, tiny.build("gpt2", Head("causal_lm")), Head("causal_lm")), "text") == Head(
        "causal_lm"
    )


def test_an_adapter_writes_as_its_base_does(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", tiny.build("t5", Head("seq2seq_lm")))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert heads.of_checkpoint(str(tmp_path / "adapter")) == Head("seq2seq_lm")


def test_what_writes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is an encoder, which writes no texts"):
        heads.of_checkpoint(str(saved(tmp_path, tiny.build("bert", tiny.MASKED))))
    with pytest.raises(ModelError, match="has no readable config"):
        heads.of_checkpoint(str(tmp_path / "nothing"))
    at_once = tiny.build("finery", Head("seq2seq_lm"), family="encoder-decoder", bidirectional_decoder=True)
    with pytest.raises(ModelError, match="writes all words at once"):
        heads.of_checkpoint(str(saved(tmp_path / "at-once", at_once)))
    assert heads.of_architecture({"preset": "gpt-tiny"}) == Head("causal_lm")
    assert heads.of_architecture({"model_type": "t5"}) == Head("seq2seq_lm")
    with pytest.raises(ModelError, match="writes no texts"):
        heads.of_architecture({"model_type": "distilbert"})
