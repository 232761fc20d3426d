"""Vectors of texts: the mean of an encoder's last hidden states, each text's own tokens alone.

Reimers and Gurevych 2019, "Sentence-BERT", section 3 (arxiv.org/abs/1908.10084) found the mean better than the vector
of the first token. Vectors have length 1, as OpenAI's do, so that their product is their cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipelines.core.errors import CommandError
from pipelines.data.ragged import padded_tensors
from pipelines.models import checkpoint as checkpoints
from pipelines.models.predict import FILLED_ON_CPU, batched_by_length, rows_at_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 32


def embed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str | Sequence[int]]
) -> tuple[NDArray[np.float32], int]:
    """(a vector of length 1 of each text, (texts, hidden); the tokens of all together). Texts may be given as tokens.

    The head of the model, which may give a score to each word of its vocabulary, is not asked, unless PEFT stands
    around it, whose prompts come in before. Raises CommandError for a text without a token, or with more than the model
    reads.
    """
    limit = checkpoints.positions_of(model, tokenizer)
    ids = [list(tokenizer(text)["input_ids"]) if isinstance(text, str) else [*text] for text in texts]
    rows = model.get_input_embeddings().weight.shape[0]
    for number, row in enumerate(ids):
        if not row:
            raise CommandError(f"input {number} comes to no token; give a text with words")
        if limit is not None and len(row) > limit:
            raise CommandError(f"input {number} has {len(row)} tokens, but the model reads at most {limit}; shorten it")
        if max(row) >= rows or min(row) < 0:
            raise CommandError(f"input {number} has a token that the vocabulary of {rows} does not hold")
    vectors: list[Any] = [None] * len(ids)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    on_cpu = model.device.type == "cpu"
    fill, most = (FILLED_ON_CPU, rows_at_once(model, model.dtype.itemsize == 2)) if on_cpu else (0, None)
    body = model.base_model if isinstance(model, PreTrainedModel) else model
    with torch.inference_mode():
        for batch in batched_by_length([len(row) for row in ids], BATCH, fill, most):
            input_ids, real = padded_tensors([ids[at] for at in batch], pad)
            inputs = checkpoints.known_inputs(body, {"input_ids": input_ids, "attention_mask": real})
            outputs = body(**inputs, output_hidden_states=body is model)
            states = outputs.hidden_states[-1] if body is model else outputs.last_hidden_state
            hidden = states.float().cpu()  # (batch, tokens, hidden)
            mean = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            for at, vector in zip(batch, torch.nn.functional.normalize(mean, dim=-1).numpy(), strict=True):
                vectors[at] = vector
    return np.stack(vectors), sum(map(len, ids))
