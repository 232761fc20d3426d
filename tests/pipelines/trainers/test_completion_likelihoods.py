"""Log-probabilities of completions in one pass, against one token at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.models.log_probabilities import completion_log_probabilities
from tests import tiny

PROMPTS = [[7, 8, 9], [10], [11, 12, 13, 14, 15]]
COMPLETIONS = [[20, 3], [21, 22, 23, 24], [25]]


def slowly(model: Any, prompt: list[int], completion: list[int], start: int | None, temperature: float) -> list[float]:
    found = []
    with torch.no_grad():
        for at, token in enumerate(completion):
            if start is None:
                logits = model(torch.tensor([[*prompt, *completion[:at]]])).logits[0, -1]
            else:
                logits = model(
                    input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *completion[:at]]])
                ).logits[0, -1]
            found.append(float(torch.log_softmax(logits.double() / temperature, -1)[token]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("model_type", "kind", "more"),
    [
        ("finery", "causal_lm", {"family": "decoder"}),
        ("gpt2", "causal_lm", {}),
        ("t5", "seq2seq_lm", {}),
        ("finery", "seq2seq_lm", {"family": "encoder-decoder"}),
    ],
)
def test_one_pass_says_what_many_say(model_type: str, kind: Any, more: dict[str, Any], temperature: float) -> None:
    model = tiny.build(model_type, Head(kind), **more).eval()
    start = None if kind == "causal_lm" else int(model.config.decoder_start_token_id)
    found = completion_log_probabilities(model, tiny.tokenizer(), PROMPTS, COMPLETIONS, temperature)
    assert [len(each) for each in found] == [len(each) for each in COMPLETIONS]
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        assert found[row] == pytest.approx(slowly(model, prompt, completion, start, temperature), abs=2e-5)
