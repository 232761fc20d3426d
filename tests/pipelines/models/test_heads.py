"""The head that a model writes with is told by what was saved, by its config, or by its architecture.

Which head an architecture writes with, told by the recipe alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pipelines.architectures import FineryForReward
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.models import heads, opening
from pipelines.models.heads import writing_head_of
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


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ({"preset": "gpt-tiny"}, "causal_lm"),
        ({"model_type": "gpt2"}, "causal_lm"),
        ({"preset": "transformer-tiny"}, "seq2seq_lm"),
        ({"model_type": "t5"}, "seq2seq_lm"),
        ({"model_type": "bart"}, "seq2seq_lm"),
        ({"preset": "bert-tiny"}, None),
        ({"model_type": "bert"}, None),
        ({"preset": "transformer-tiny", "bidirectional_decoder": True}, None),
    ],
)
def test_an_architecture_tells_it(shape: dict[str, Any], kind: str | None):
    found = writing_head_of(shape)
    assert (None if found is None else found.kind) == kind


HEAD = Head("reward")


@pytest.mark.parametrize(
    ("model_type", "shape", "name"),
    [
        ("finery", {"family": "encoder"}, "FineryForSequenceClassification"),
        ("finery", {"family": "decoder"}, "FineryForSequenceClassification"),
        ("bert", {}, "BertForSequenceClassification"),
        ("gpt2", {}, "GPT2ForSequenceClassification"),
    ],
)
def test_any_family_gets_a_head_of_one_output_and_keeps_it_on_the_disk(tmp_path, model_type, shape, name):
    model = tiny.build(model_type, HEAD, **shape).eval()
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    assert type(model).__name__ == name
    model.save_pretrained(str(tmp_path))
    again = opening.open_folder(tmp_path, HEAD, 1, trained_head=True).eval()
    weights = again.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(model(**tiny.batch(3)).logits, again(**tiny.batch(3)).logits)
    assert again(**tiny.batch(3)).logits.shape == (3, 1)


def test_a_language_model_gets_a_fresh_head_and_is_no_trained_reward_model(tmp_path):
    tiny.build("finery", Head("causal_lm"), family="decoder").save_pretrained(str(tmp_path))
    fresh = opening.open_folder(tmp_path, HEAD, 1)
    assert fresh.finery_new_modules == ["classifier"]
    with pytest.raises(ModelError, match="has no trained reward head for 1 outputs"):
        opening.open_folder(tmp_path, HEAD, 1, trained_head=True)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_what_was_saved_as_a_reward_class_of_our_own_opens_with_the_same_scores(tmp_path, family):
    config = tiny.build("finery", HEAD, family=family).config
    torch.manual_seed(3)
    before = FineryForReward(config).eval()
    before.save_pretrained(str(tmp_path))
    again = opening.open_folder(tmp_path, HEAD, 1, trained_head=True).eval()
    assert type(again).__name__ == "FineryForSequenceClassification"
    with torch.no_grad():
        torch.testing.assert_close(before(**tiny.batch(3)).logits, again(**tiny.batch(3)).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("model_type", "shape"), [("finery", {"family": "decoder"}), ("bert", {}), ("gpt2", {})])
def test_the_auto_class_of_transformers_gives_the_scores_of_a_reward_model(tmp_path, model_type, shape):
    model = tiny.build(model_type, HEAD, **shape).eval()
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    model.save_pretrained(str(tmp_path))
    opened = AutoModelForSequenceClassification.from_pretrained(str(tmp_path)).eval()
    assert (opened.config.num_labels, opened.config.problem_type) == (1, "regression")
    with torch.no_grad():
        torch.testing.assert_close(model(**tiny.batch(3)).logits, opened(**tiny.batch(3)).logits, atol=1e-5, rtol=0)
