"""Mask-predict: its parts, and which models it fits.

Hidden tokens of targets: how many, which, and the two losses.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from pipelines.core.errors import ModelError
from pipelines.objectives.mask_predict import MaskPredict

FIT = {"model_type": "finery", "family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True}


def test_tokens_and_lengths_are_parts_of_the_loss():
    objective = MaskPredict(length_weight=0.5)
    assert objective.pairs
    assert objective.label_names == {"labels": 1.0, "length_labels": 0.5}
    assert objective.head.kind == "seq2seq_lm"


def test_what_is_missing_is_named():
    objective = MaskPredict()
    assert objective.misfit(FIT) is None
    assert "add bidirectional_decoder: true to model.architecture" in str(
        objective.misfit(FIT | {"bidirectional_decoder": False})
    )
    assert "add bidirectional_decoder: true and length_prediction: true" in str(
        objective.misfit({"model_type": "finery", "family": "encoder-decoder"})
    )
    assert "those of the finery family with family: encoder-decoder" in str(objective.misfit({"model_type": "t5"}))
    assert "those of the finery family with family: encoder-decoder" in str(
        objective.misfit(FIT | {"family": "decoder"})
    )


PAD, BEGIN, END, MASK = 0, 2, 3, 4
TOKENIZER = SimpleNamespace(
    pad_token_id=PAD, mask_token_id=MASK, cls_token_id=BEGIN, sep_token_id=END, bos_token_id=None, eos_token_id=None
)
CONFIG = SimpleNamespace(max_position_embeddings=16)


def examples(*words: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"input_ids": [BEGIN, 9, END], "labels": [BEGIN, *range(10, 10 + count), END], "draw": first + draw}
        for draw, count in enumerate(words)
    ]


def collate(rows: list[dict[str, Any]], seed: int = 0) -> dict[str, torch.Tensor]:
    batch: dict[str, torch.Tensor] = MaskPredict().collate(TOKENIZER, seed, CONFIG)(rows)
    return batch


def test_hidden_tokens_are_asked_for_and_the_others_stand():
    batch = collate(examples(5, 1, 12))
    for row, count in enumerate((5, 1, 12)):
        words = torch.arange(10, 10 + count)
        read, asked = batch["decoder_input_ids"][row, :count], batch["labels"][row, :count]
        hidden = asked != -100
        assert 1 <= hidden.sum() <= count
        assert (read[hidden] == MASK).all()
        assert torch.equal(asked[hidden], words[hidden])
        assert torch.equal(read[~hidden], words[~hidden])
        assert (batch["decoder_input_ids"][row, count:] == PAD).all()
        assert (batch["labels"][row, count:] == -100).all()
    assert batch["decoder_attention_mask"].sum(1).tolist() == batch["length_labels"].tolist() == [5, 1, 12]


def test_every_number_and_every_choice_of_tokens_is_equally_likely():
    batch = collate(examples(*[3] * 6000))
    found = Counter(map(tuple, (batch["labels"] != -100).int().tolist()))
    assert len(found) == 7
    for hidden, count in found.items():
        expected = 6000 / 3 / {1: 3, 2: 3, 3: 1}[sum(hidden)]
        assert abs(count - expected) < 5 * expected**0.5


def test_a_target_beyond_the_lengths_that_can_be_predicted_is_cut():
    batch = collate(examples(40))
    assert batch["length_labels"].tolist() == [15]
    assert batch["decoder_input_ids"].shape == (1, 15)


def test_a_tokenizer_without_a_mask_is_refused():
    with pytest.raises(ModelError, match="no mask token, which the objective mask_predict needs"):
        MaskPredict().collate(SimpleNamespace(mask_token_id=None), 0, CONFIG)


def test_the_losses_are_sums_over_hidden_tokens_and_over_targets():
    batch = collate(examples(5, 1, 12))
    torch.manual_seed(0)
    logits, lengths = torch.randn(3, 12, 40), torch.randn(3, 16)
    seen: dict[str, Any] = {}

    def model(**inputs: Any) -> Any:
        seen.update(inputs)
        return SimpleNamespace(logits=logits, length_logits=lengths)

    batch["length_labels"][1] = -100  # what only fills a batch up
    sums, _ = MaskPredict(label_smoothing=0.0).loss(model, dict(batch))
    asked = batch["labels"] != -100
    expected = sum(
        functional.cross_entropy(logits[row, column], batch["labels"][row, column]).item()
        for row, column in asked.nonzero().tolist()
    )
    length = functional.cross_entropy(lengths[0], torch.tensor(5)) + functional.cross_entropy(
        lengths[2], torch.tensor(12)
    )
    assert sums.tolist() == pytest.approx([expected, length.item()], rel=1e-5)
    assert set(seen) == {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"}
