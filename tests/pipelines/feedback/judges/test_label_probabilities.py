"""The probabilities of labels are those that the model gives to their tokens one by one, whatever the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.feedback.judges.label_probabilities import LabelQuery, label_probabilities, ways_of
from tests import tiny

ROWS = [LabelQuery([5, 6, 7]), LabelQuery([8, 9, 10, 11, 12], [6, 7]), LabelQuery([13])]
WAYS = [((20,), (21, 22)), ((23,),), ((20, 24),)]
"""The third label goes on where the first one's first way ends, as 10 does behind 1."""


def slow(model: Any, row: LabelQuery, start: int | None) -> list[float]:
    """P of each label among all, one sequence at a time, by the chain rule."""

    def chance(way: tuple[int, ...]) -> float:
        whole = 1.0
        for depth in range(len(way)):
            if start is None:
                ids = torch.tensor([[*row.prompt, *row.written, *way[:depth]]])
                logits = model(input_ids=ids).logits
            else:
                written = torch.tensor([[start, *row.written, *way[:depth]]])
                logits = model(input_ids=torch.tensor([list(row.prompt)]), decoder_input_ids=written).logits
            whole *= torch.softmax(logits[0, -1].double(), -1)[way[depth]].item()
        return whole

    with torch.no_grad():
        first = chance((20,)) - chance((20, 24)) + chance((21, 22))
        masses = [first, chance((23,)), chance((20, 24))]
    return [mass / sum(masses) for mass in masses]


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [("gpt2", "causal_lm"), ("llama", "causal_lm"), ("t5", "seq2seq_lm"), ("bart", "seq2seq_lm")],
)
def test_it_is_what_the_model_says_token_by_token(model_type: str, kind: Any) -> None:
    model = tiny.build(model_type, Head(kind)).eval()
    tiny.disturb(model, by=0.3)
    start = None if kind == "causal_lm" else int(model.config.decoder_start_token_id)
    expected = torch.tensor([slow(model, row, start) for row in ROWS], dtype=torch.float64)
    for size in (1, 2, 8):
        found, mass = label_probabilities(model, ROWS, WAYS, tiny.tokenizer().pad_token_id, start, size)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.float64))
        assert ((mass > 0) & (mass < 1)).all()
    assert not model.training


def test_labels_are_written_in_more_than_one_way() -> None:
    class Bytes:
        unk_token_id = None

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": list(text.encode())}

    assert ways_of(Bytes(), ("1", "10")) == [((32, 49), (49,)), ((32, 49, 48), (49, 48))]


def test_a_tokenizer_that_cannot_tell_labels_apart_is_refused() -> None:
    with pytest.raises(ModelError, match="tell its answers"):
        ways_of(tiny.tokenizer(), ("☃", "☂"))
    with pytest.raises(ModelError, match="tell its answers"):
        ways_of(tiny.tokenizer(), ("a", "A"))  # a vocabulary of lower-case words
