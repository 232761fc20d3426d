"""The texts that a model writes for its sources, in the order of the sources.

Sources are batched with others of their own length, the longest first, and shared by the processes as in `predict`.
Models that were trained with mask-predict write all tokens at once, the others by beam search. Always fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import ModelError
from pipelines.evaluation.generation import Generation
from pipelines.evaluation.predict import Running, answers
from pipelines.fields.positions import positions_for_text
from pipelines.protocols import Rows

MAX_TARGET_LENGTH = 128
"""Tokens of a written text, where neither the evaluate stage nor the one that trained says."""


def write(
    model: Any,
    tokenizer: Any,
    rows: Rows,
    max_length: int,
    settings: Generation,
    *,
    target_length: int | None = None,
    **running: Unpack[Running],
) -> NDArray[Any]:
    """What the model writes for each text of `rows`, (examples,), on every process. Raises DataError without rows."""
    from pipelines.data.encoding import collate, encode

    examples = replace(encode(tokenizer, replace(rows, labels=None), max_length), token_type_ids=None)
    decode = decoder(model, tokenizer, settings, target_length)

    def answer(positions: list[int], device: Any) -> list[str]:
        inputs = collate(tokenizer, [examples[position] for position in positions])
        return texts_of(tokenizer, decode(inputs["input_ids"].to(device), inputs["attention_mask"].to(device)))

    return np.asarray(answers(model, examples.lengths.tolist(), answer, **running), dtype=object)


def texts_of(tokenizer: Any, written: Any) -> list[str]:
    """Written ids (batch, target) as texts, without special tokens and space around them."""
    return [text.strip() for text in tokenizer.batch_decode(written, skip_special_tokens=True)]


def decoder(model: Any, tokenizer: Any, settings: Generation, target_length: int | None) -> Callable[[Any, Any], Any]:
    """A function from `input_ids` and `attention_mask` (batch, source) to written ids (batch, target)."""
    if getattr(model.config, "bidirectional_decoder", False):
        return _by_masks(model, tokenizer, settings)
    return _by_beams(model, tokenizer, settings, target_length)


def _by_masks(model: Any, tokenizer: Any, settings: Generation) -> Callable[[Any, Any], Any]:
    if tokenizer.mask_token_id is None:
        raise ModelError("the model decodes by mask-predict, but the tokenizer has no mask token; use the one it was trained with")

    def decode(input_ids: Any, attention_mask: Any) -> Any:
        return model.mask_predict(
            input_ids, attention_mask=attention_mask, mask_token_id=tokenizer.mask_token_id,
            iterations=settings.iterations, length_beam=settings.length_beam, excluded=tuple(tokenizer.all_special_ids),
        )  # fmt: skip

    return decode


def _by_beams(model: Any, tokenizer: Any, settings: Generation, target_length: int | None) -> Callable[[Any, Any], Any]:
    config = deepcopy(model.generation_config)
    longest = settings.max_new_tokens or target_length or MAX_TARGET_LENGTH
    positions = positions_for_text(model)
    config.max_new_tokens = longest if positions is None else min(longest, positions - 1)
    config.max_length = None
    config.do_sample = False
    config.num_beams = settings.num_beams
    config.length_penalty = settings.length_penalty if settings.num_beams > 1 else None
    config.early_stopping = False if settings.num_beams > 1 else None
    config.decoder_start_token_id = _first(model.config, config, "decoder_start_token_id", tokenizer.pad_token_id)
    config.eos_token_id = _first(model.config, config, "eos_token_id", tokenizer.sep_token_id)
    config.pad_token_id = _first(model.config, config, "pad_token_id", tokenizer.pad_token_id)

    def decode(input_ids: Any, attention_mask: Any) -> Any:
        return model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=config)

    return decode


def _first(model_config: Any, generation_config: Any, name: str, otherwise: Any) -> Any:
    """A token that the model was trained with, as its configs say."""
    for config in (generation_config, model_config):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return otherwise
