"""How likely a model finds completions that are there already, token by token, in one pass a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipelines.data.completions import IGNORED, Together, padding_token
from pipelines.trainers.log_probabilities import token_log_probabilities
from pipelines.trainers.rollouts import decoder_start, filled


def completion_log_probabilities(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float = 1.0
) -> list[list[float]]:
    """log p of every token of every completion behind its prompt, in nats, for one batch of token ids.

    A decoder reads both as one row, an encoder-decoder the prompt as its source. `temperature` divides the logits, as it did when
    the completions were sampled. The model stays where it is and computes as it is set to.
    """
    pad = padding_token(tokenizer)
    if model.config.is_encoder_decoder:
        sources, real = filled(prompts, pad)
        targets, written = filled(completions, pad)
        start = torch.full((len(targets), 1), decoder_start(model, tokenizer), dtype=torch.int64)
        inputs = {
            "input_ids": sources, "attention_mask": real, "decoder_input_ids": torch.cat([start, targets[:, :-1]], dim=1),
            "labels": targets.masked_fill(written == 0, IGNORED),
        }  # fmt: skip
    else:
        rows = [
            {"input_ids": [*prompt, *completion], "labels": [*[IGNORED] * len(prompt), *completion]}
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        inputs = Together(pad)(rows)
    with torch.no_grad():
        named = token_log_probabilities(model, {name: value.to(model.device) for name, value in inputs.items()}, temperature=temperature)
    return [row[mask].tolist() for row, mask in zip(named.log_probabilities.cpu(), named.mask.cpu(), strict=True)]
