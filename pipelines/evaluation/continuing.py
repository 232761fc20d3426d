"""The answers that a decoder writes to prompts, in the order of the prompts.

Greedy unless the stage asks for beams. Prompts are batched with others of their own length and filled up on the left. A
prompt too long for the model's positions loses its beginning, so that what asks for the answer stays. Always fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import opening_of, padding_token
from pipelines.data.conversations import prompt_of
from pipelines.evaluation.decoding import MAX_TARGET_LENGTH, texts_of
from pipelines.evaluation.generation import Generation
from pipelines.evaluation.predict import Running, answers
from pipelines.fields.positions import positions_for_text


@dataclass(frozen=True)
class How:
    """How answers are written."""

    config: Any
    """transformers' GenerationConfig."""
    longest_prompt: int | None
    """Tokens of a prompt that leave room for an answer; None where there is no bound."""

    def words(self) -> dict[str, Any]:
        """As it stands in `details.json`."""
        return {"num_beams": self.config.num_beams, "max_new_tokens": self.config.max_new_tokens, "do_sample": False} | (
            {"length_penalty": self.config.length_penalty} if self.config.num_beams > 1 else {}
        )


def how(model: Any, tokenizer: Any, settings: Generation) -> How:
    """The model's own special tokens, with the stage's settings; greedy where the stage names no beams."""
    own: Any = model.generation_config
    config: Any = deepcopy(own)
    beams = settings.num_beams if "num_beams" in settings.model_fields_set else 1
    positions = positions_for_text(model)
    new = settings.max_new_tokens or MAX_TARGET_LENGTH
    config.max_new_tokens = new if positions is None else min(new, max(1, positions // 2))
    config.max_length = None
    config.do_sample, config.temperature, config.top_k, config.top_p = False, None, None, None
    config.num_beams = beams
    config.length_penalty = settings.length_penalty if beams > 1 else None
    config.early_stopping = False if beams > 1 else None
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id if tokenizer.eos_token_id is None else None}
    own_ends = getattr(own, "eos_token_id", None)
    ends |= set(own_ends) if isinstance(own_ends, list | tuple) else {own_ends}
    config.eos_token_id = sorted(ends - {None})
    config.pad_token_id = padding_token(tokenizer)
    return How(config, None if positions is None else positions - config.max_new_tokens)


def continue_prompts(
    model: Any, tokenizer: Any, dialogues: Sequence[Dialogue], settings: How, **running: Unpack[Running]
) -> NDArray[Any]:
    """What the model answers to all but the last message of each dialogue (examples,), on every process. Raises DataError."""
    import torch

    prompts = [prompt_ids(tokenizer, each)[-(settings.longest_prompt or 0) :] for each in dialogues]

    def answer(positions: list[int], device: Any) -> list[str]:
        ids, real = filled_on_the_left([prompts[at] for at in positions], settings.config.pad_token_id)
        inputs = {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(real).to(device)}
        return texts_of(tokenizer, model.generate(**inputs, generation_config=settings.config)[:, ids.shape[1] :])

    return np.asarray(answers(model, [len(each) for each in prompts], answer, **running), dtype=object)


def prompt_ids(tokenizer: Any, dialogue: Dialogue) -> list[int]:
    """The tokens that ask for the last answer, as they stand before it in training."""
    ids: list[int] = tokenizer(prompt_of(tokenizer, dialogue), add_special_tokens=False, verbose=False)["input_ids"]
    return ids if dialogue.templated else [*opening_of(tokenizer), *ids]


def filled_on_the_left(rows: Sequence[Sequence[int]], fill: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows, filled up on the left, and 1 where they are real, both (batch, length)."""
    longest = max(len(row) for row in rows)
    ids, real = np.full((len(rows), longest), fill, dtype=np.int64), np.zeros((len(rows), longest), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, longest - len(row) :], real[place, longest - len(row) :] = row, 1
    return ids, real
