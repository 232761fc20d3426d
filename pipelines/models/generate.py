"""Texts that a model writes: beam search or mask-predict for sources, continuations of prompts, and who opens the
writer.

Sources and prompts are batched with others of their own length, the longest first, and shared by the processes as in
`predict`; always in fp32. Models that were trained with mask-predict write all tokens at once, other encoder-decoders
by beam search. Continuations are greedy unless the stage asks for beams; a prompt too long for the model's positions
loses its beginning, so that what asks for the answer stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.core.decoding import Generation
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Rows
from pipelines.core.model_types import positions_for_text
from pipelines.core.recipe import START
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import prompt_of
from pipelines.data.completions import opening_of, padding_token
from pipelines.data.ragged import padded_tensors
from pipelines.models.predict import InferenceOptions, answers, device

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context


Decode = Callable[["Tensor", "Tensor"], "Tensor"]
"""`decode(input_ids, attention_mask)`, both (batch, source), to written ids (batch, target)."""
MAX_TARGET_LENGTH = 128
"""Tokens of a written text, where neither the evaluate stage nor the one that trained says."""


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    settings: Generation,
    *,
    target_length: int | None = None,
    **running: Unpack[InferenceOptions],
) -> NDArray[np.object_]:
    """What the model writes for each text of `rows`, (examples,), on every process. Raises DataError without rows."""
    from pipelines.data.encoding import collate, encode

    examples = replace(encode(tokenizer, replace(rows, labels=None), max_length), token_type_ids=None)
    decode = decoder(model, tokenizer, settings, target_length)

    def answer(positions: list[int], device: torch.device | str) -> list[str]:
        inputs = collate(tokenizer, [examples[position] for position in positions])
        return texts_of(tokenizer, decode(inputs["input_ids"].to(device), inputs["attention_mask"].to(device)))

    return np.asarray(answers(model, examples.lengths.tolist(), answer, **running), dtype=object)


def texts_of(tokenizer: PreTrainedTokenizerBase, written: Tensor) -> list[str]:
    """Written ids (batch, target) as texts, without special tokens and space around them."""
    return [text.strip() for text in tokenizer.batch_decode(written, skip_special_tokens=True)]


def decoder(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Generation, target_length: int | None
) -> Decode:
    """A function from `input_ids` and `attention_mask` (batch, source) to written ids (batch, target)."""
    if getattr(model.config, "bidirectional_decoder", False):
        return _by_masks(model, tokenizer, settings)
    return _by_beams(model, tokenizer, settings, target_length)


def _by_masks(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Generation) -> Decode:
    if tokenizer.mask_token_id is None:
        raise ModelError(
            "the model decodes by mask-predict, but the tokenizer has no mask token; use the one it was trained with"
        )

    def decode(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return model.mask_predict(
            input_ids,
            attention_mask=attention_mask,
            mask_token_id=tokenizer.mask_token_id,
            iterations=settings.iterations,
            length_beam=settings.length_beam,
            excluded=tuple(tokenizer.all_special_ids),
        )

    return decode


def _by_beams(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Generation, target_length: int | None
) -> Decode:
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

    def decode(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=config)

    return decode


def _first(
    model_config: PreTrainedConfig, generation_config: GenerationConfig, name: str, otherwise: int | None
) -> int | None:
    """A token that the model was trained with, as its configs say."""
    for config in (generation_config, model_config):
        token: int | None = getattr(config, name, None)
        if token is not None:
            return token
    return otherwise


@dataclass(frozen=True)
class How:
    """How answers are written."""

    config: GenerationConfig
    """transformers' GenerationConfig."""
    longest_prompt: int | None
    """Tokens of a prompt that leave room for an answer; None where there is no bound."""

    def words(self) -> dict[str, int | float | bool]:
        """As it stands in `details.json`."""
        return {
            "num_beams": self.config.num_beams,
            "max_new_tokens": self.config.max_new_tokens,
            "do_sample": False,
        } | ({"length_penalty": self.config.length_penalty} if self.config.num_beams > 1 else {})


def how(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Generation) -> How:
    """The model's own special tokens, with the stage's settings; greedy where the stage names no beams."""
    from pipelines.models.sampling import ends_of

    config: GenerationConfig = deepcopy(model.generation_config)
    beams = settings.num_beams if "num_beams" in settings.model_fields_set else 1
    positions = positions_for_text(model)
    new = settings.max_new_tokens or MAX_TARGET_LENGTH
    config.max_new_tokens = new if positions is None else min(new, max(1, positions // 2))
    config.max_length = None
    config.do_sample, config.temperature, config.top_k, config.top_p = False, None, None, None
    config.num_beams = beams
    config.length_penalty = settings.length_penalty if beams > 1 else None
    config.early_stopping = False if beams > 1 else None
    config.eos_token_id = ends_of(model, tokenizer)
    config.pad_token_id = padding_token(tokenizer)
    return How(config, None if positions is None else positions - config.max_new_tokens)


def continue_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    settings: How,
    **running: Unpack[InferenceOptions],
) -> NDArray[np.object_]:
    """What the model answers to all but the last message of each dialogue (examples,), on every process. Raises
    DataError."""
    prompts = [prompt_ids(tokenizer, each)[-(settings.longest_prompt or 0) :] for each in dialogues]

    def answer(positions: list[int], device: torch.device | str) -> list[str]:
        asked = [prompts[at] for at in positions]
        ids, real = padded_tensors(asked, settings.config.pad_token_id, on_the_left=True, device=device)
        written = model.generate(input_ids=ids, attention_mask=real, generation_config=settings.config)
        return texts_of(tokenizer, written[:, ids.shape[1] :])

    return np.asarray(answers(model, [len(each) for each in prompts], answer, **running), dtype=object)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> list[int]:
    """The tokens that ask for the last answer, as they stand before it in training."""
    ids: list[int] = tokenizer(prompt_of(tokenizer, dialogue), add_special_tokens=False, verbose=False)["input_ids"]
    return ids if dialogue.templated else [*opening_of(tokenizer), *ids]


@dataclass(frozen=True)
class LanguageModel:
    """A language model, on the device where it computes, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def encoder_decoder(self) -> bool:
        """Whether it reads with one part and writes with another."""
        return bool(self.model.config.is_encoder_decoder)


def open_writer(context: Context, stage_id: str | None = None, checkpoint: str | None = None) -> LanguageModel:
    """The language model of a stage (default: the one this stage reads) or of a checkpoint. Raises ModelError."""
    if checkpoint is not None:
        model = context.open_model(None, checkpoint=checkpoint, trained_head=True)
        return LanguageModel(model.to(device()), context.open_tokenizer(checkpoint=checkpoint))
    source = stage_id or context.recipe.model_of(context.recipe.stage(context.stage_id))
    from_scratch = source == START and context.recipe.model.checkpoint is None
    model = context.open_model(None, stage_id=source, trained_head=not from_scratch)
    return LanguageModel(model.to(device()), context.open_tokenizer(None if source == START else source))
