"""What a language model writes behind prompts, up to the first text that ends an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.core.decoding import Generation
from pipelines.core.errors import ModelError
from pipelines.data.ragged import padded_tensors
from pipelines.evaluation.few_shot.likelihood import LikelihoodReader
from pipelines.models.generate import decoder, how
from pipelines.models.predict import InferenceOptions, answers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

MOST_NEW = 32
"""Tokens of an answer, where nobody says."""


def settings_of(generation: Generation) -> Generation:
    """Greedy and short, unless the stage says otherwise."""
    given = {name: getattr(generation, name) for name in generation.model_fields_set}
    return Generation(**({"num_beams": 1, "max_new_tokens": MOST_NEW} | given))


def write(
    reader: LikelihoodReader,
    prompts: Sequence[tuple[int, ...]],
    stops: Sequence[str],
    generation: Generation,
    sampling: Mapping[str, Any] | None = None,
    **running: Unpack[InferenceOptions],
) -> NDArray[np.object_]:
    """The texts (prompts,) behind the prompts' tokens, up to what ends them, which is left out.

    `sampling` are words of transformers' GenerationConfig, with which tokens are drawn instead of searched for.
    """
    model, tokenizer = reader.model, reader.tokenizer
    if reader.head.kind == "masked_lm":
        raise ModelError(
            "an encoder fills in, it writes no answers; ask it by likelihood (few_shot.answer: likelihood), "
            "or take a decoder"
        )
    decodes = reader.head.kind == "seq2seq_lm"
    config = deepcopy(how(model, tokenizer, generation).config)
    for name, value in ({"do_sample": True} | dict(sampling) if sampling else {}).items():
        setattr(config, name, value)
    by_beams = decoder(model, tokenizer, generation, None) if decodes and not sampling else None

    def answer(positions: list[int], device: torch.device) -> list[str]:
        asked = [prompts[at] for at in positions]
        given, mask = padded_tensors(asked, config.pad_token_id, on_the_left=not decodes, device=device)
        if by_beams is not None:
            written = by_beams(given, mask)[:, 1:]
        else:
            first = 1 if decodes else given.shape[1]
            ends = _ends(tokenizer, stops, first)
            written = model.generate(
                input_ids=given, attention_mask=mask, generation_config=config, stopping_criteria=[ends]
            )[:, first:]
        return [until(text, stops) for text in tokenizer.batch_decode(written, skip_special_tokens=True)]

    return np.asarray(answers(model, [len(each) for each in prompts], answer, **running), dtype=object)


def until(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def _ends(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], prompt_length: int) -> Any:
    """A criterion of `generate` that ends each row behind its first stop."""
    import torch

    def done(input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        texts = tokenizer.batch_decode(input_ids[:, prompt_length:], skip_special_tokens=True)
        return torch.tensor([any(stop in text for stop in stops) for text in texts], device=input_ids.device)

    return done
