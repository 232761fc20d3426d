"""Tokenizers are opened from folders, fast ones only, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.registry import TOKENIZERS
from pipelines.models import tokenizer
from tests import tiny


def test_a_saved_tokenizer_is_opened_unchanged(tmp_path: Path) -> None:
    tiny.tokenizer().save_pretrained(tmp_path)
    opened = tokenizer.open_tokenizer(str(tmp_path))
    assert opened.is_fast
    assert dict(opened(*tiny.TEXTS[:2])) == dict(tiny.tokenizer()(*tiny.TEXTS[:2]))


@pytest.mark.parametrize("damage", ["missing", "empty", "broken", "nowhere"])
def test_what_cannot_be_opened_is_refused_in_one_sentence(damage: str, tmp_path: Path) -> None:
    source = tmp_path / "tokenizer"
    tiny.tokenizer().save_pretrained(source)
    if damage == "broken":
        (source / "tokenizer.json").write_text("{")
    elif damage == "empty":
        for path in source.iterdir():
            path.unlink()
    elif damage == "missing":
        (source / "tokenizer.json").unlink()
    name = "nobody/nothing" if damage == "nowhere" else str(source)
    with pytest.raises(ModelError, match=f"no tokenizer could be opened from '{name}': ") as caught:
        tokenizer.open_tokenizer(name)
    assert "\n" not in str(caught.value)


def test_a_slow_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    class Slow:
        is_fast = False

    def slow(*_: Any, **__: Any) -> Slow:
        return Slow()

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", slow)
    with pytest.raises(ModelError, match="the tokenizer of 'somewhere' has no fast version"):
        tokenizer.open_tokenizer("somewhere")


def test_the_default_algorithm_is_one_of_the_table() -> None:
    assert tokenizer.DEFAULT in TOKENIZERS
    assert tokenizer.block(tokenizer.DEFAULT).name == tokenizer.DEFAULT


@pytest.mark.parametrize(
    ("shape", "segments"),
    [
        ({"model_type": "finery"}, True),
        ({"model_type": "finery", "family": "decoder"}, False),
        ({"model_type": "finery", "family": "encoder-decoder"}, False),
        ({"model_type": "finery", "type_vocab_size": 0}, False),
        ({"model_type": "bert"}, True),
        ({"model_type": "bert", "type_vocab_size": 1}, False),
        ({"model_type": "electra"}, True),
        ({"model_type": "xlnet"}, True),
        ({"model_type": "gpt2"}, False),
        ({"model_type": "t5"}, False),
        ({"model_type": "modernbert"}, False),
    ],
)
def test_models_with_segments_are_known_by_their_config(shape: dict[str, Any], segments: bool) -> None:
    assert tokenizer.has_segments(shape) is segments


def test_a_tokenizer_without_segments_stays_so_when_it_is_saved(tmp_path: Path) -> None:
    tiny.tokenizer().save_pretrained(tmp_path / "with")
    tokenizer.without_segments(tokenizer.open_tokenizer(str(tmp_path / "with"))).save_pretrained(tmp_path / "without")
    assert set(tokenizer.open_tokenizer(str(tmp_path / "with"))("a", "b")) == {
        "input_ids",
        "token_type_ids",
        "attention_mask",
    }
    assert set(tokenizer.open_tokenizer(str(tmp_path / "without"))("a", "b")) == {"input_ids", "attention_mask"}
