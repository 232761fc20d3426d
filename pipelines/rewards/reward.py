"""What every reward promises: texts in, one number for each out; and how a model reads the texts that it scores.

A reward reads text, never token ids, so that the model behind it may have another tokenizer than the policy. A model
that scores reads batches of similar length, in fp32, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.core.config import ConfigIssues, Consulted
from pipelines.core.errors import ModelError
from pipelines.core.model_types import positions_for_text

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput

    from pipelines.core.interfaces import Context, Head, World


Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
"""`scorer(prompts, completions)`: a finite number for each pair. `prompts` are those of `data.prompts`, which know
their messages, or plain texts. What stands beside a pair changes its number by rounding at most."""


class RewardBlock(Consulted):
    """A reward in a recipe."""

    def open(self, context: Context) -> Scorer:
        """The function that scores. Called once a stage, on every process of `context.world`, each of which then scores
        equally many texts at a time. Raises ModelError."""
        raise NotImplementedError


def one_place(source: str | None, checkpoint: str | None) -> None:
    """Raise ConfigIssues unless either a stage or a checkpoint is named."""
    if (source is None) == (checkpoint is None):
        given = "both were given" if source is not None else "neither was given"
        raise ConfigIssues(
            [((), f"needs either 'from' (an earlier stage) or 'checkpoint' (a folder or a Hub name); {given}")]
        )


BATCH = 32
"""Texts at a time."""


def read_by_length(
    model: PreTrainedModel,
    examples: Sequence[Any],
    lengths: Sequence[int],
    batch: Callable[[list[Any]], dict[str, Tensor]],
    read: Callable[[ModelOutput, dict[str, Tensor]], Tensor],
    size: int = BATCH,
) -> list[float]:
    """`read(outputs, inputs)` (batch,) of every example, in their order; the longest are read first. Of the outputs it
    reads logits alone.

    Raises ModelError for a score that is no finite number.
    """
    import numpy as np
    import torch

    from pipelines.models import fsdp
    from pipelines.models.read_places import text_alone

    scores = np.zeros(len(examples), dtype=np.float64)
    order = sorted(range(len(examples)), key=lambda place: -lengths[place])
    device = next(model.parameters()).device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for start in range(0, len(order), size):
            places = order[start : start + size]
            inputs = {name: value.to(device) for name, value in batch([examples[place] for place in places]).items()}
            with text_alone(model, inputs):
                outputs = model(**inputs)
            scores[places] = read(outputs, inputs).float().reshape(-1).cpu().numpy()
    fsdp.give_up(model)
    if not np.isfinite(scores).all():
        raise ModelError(
            f"{type(model).__name__} gives a text the score {scores[~np.isfinite(scores)][0]}; its weights are damaged"
        )
    return [float(score) for score in scores]


def opened(context: Context, head: Head, source: str | None, checkpoint: str | None) -> PreTrainedModel:
    """The model of a stage or of a checkpoint, not in its place yet: see `ready`."""
    from pipelines.models.open_once import open_once

    return open_once(
        context,
        head,
        partial(context.open_model, head, stage_id=source, checkpoint=checkpoint, trained_head=True),
    )


def ready(model: PreTrainedModel, world: World | None = None) -> PreTrainedModel:
    """The model on this process's device, in fp32, learning nothing. Where those of a `world` divide what they train,
    its weights are divided too."""
    import torch

    from pipelines.models import fsdp

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    model = model.to(dtype=torch.float32).eval().requires_grad_(False)
    if world is None or not world.is_sharded:
        return model.to(device)
    fsdp.shard(model, device, world.size)
    return model


def usable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, wanted: int) -> int:
    """`wanted` tokens, or as many as the model has positions for and its tokenizer was made for."""
    limits = (wanted, positions_for_text(model), tokenizer.model_max_length)
    return min(limit for limit in limits if isinstance(limit, int) and limit > 0)


def ends_kept(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[dict[str, list[int]]]:
    """Each text as the tokenizer gives it to a classifier. A longer one loses its beginning: what is scored stands
    at the end."""
    from pipelines.data.encoding import settings_kept

    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    try:
        with settings_kept(tokenizer):
            encoded = tokenizer(list(texts), truncation=True, max_length=max_length, padding=False, verbose=False)
    finally:
        tokenizer.truncation_side = side
    return [{name: column[row] for name, column in encoded.items()} for row in range(len(texts))]


def padded(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, list[int]]]], dict[str, Tensor]]:
    """Batches of what `ends_kept` gives, filled up on the right."""

    def together(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        import torch

        fill = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
        longest = max(len(row["input_ids"]) for row in rows)
        return {
            name: torch.tensor(
                [row[name] + [fill.get(name, 0)] * (longest - len(row[name])) for row in rows], dtype=torch.int64
            )
            for name in rows[0]
        }

    return together
