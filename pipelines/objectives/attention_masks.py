"""Who sees whom: which models an objective can teach, and ready attention masks (batch, 1, query, key).

A ready mask is for what a model has no words of its own for: a prefix that is read both ways, documents of one block
that must not see each other. Attention by sequences (`pipelines.models.varlen`) reads the latter off positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.core.interfaces import IGNORED
from pipelines.objectives.batches import Flags, Ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


def decoder_sees_ahead(architecture: Mapping[str, Any]) -> str | None:
    """Why teacher forcing cannot teach this encoder-decoder, as a sentence without its subject; None if it can."""
    if architecture.get("bidirectional_decoder"):
        return (
            "needs a decoder that sees what is already written and no more, but bidirectional_decoder is true, so that "
            "it would see the very token that it is asked for; leave bidirectional_decoder out, or use mask_predict"
        )
    return None


HIDDEN = -3.4028234663852886e38
"""What is added to the score of a key that must not be seen: the least float32."""


def additive(allowed: Flags) -> npt.NDArray[np.float32]:
    """0 where a query may see a key and HIDDEN elsewhere, (batch, 1, query, key), of `allowed` (batch, query, key)."""
    import numpy as np

    return np.where(allowed, np.float32(0), np.float32(HIDDEN))[:, None]


def earlier(length: int, prefix: Ids | None = None) -> Flags:
    """Queries see themselves and what is before them, and the first `prefix` (batch,) tokens see each other.

    Dong et al. 2019, "UniLM", section 2.3, arxiv.org/abs/1905.03197. Returns (batch, query, key), batch 1 without
    prefix.
    """
    import numpy as np

    position = np.arange(length)
    allowed: Flags = (position[None, :] <= position[:, None])[None]
    if prefix is not None:
        allowed = allowed | (position[None, None, :] < prefix[:, None, None])
    return allowed


def documents(ids: Ids, end: int) -> Ids:
    """The number of the document that each token belongs to, (batch, length); a document's end is its last token."""
    import numpy as np

    ends = (ids == end).astype(np.int64)
    before: Ids = np.cumsum(ends, axis=1) - ends
    return before


def restarted(numbers: Ids) -> Ids:
    """The position of each token within its document (batch, length), of the `documents` that tokens belong to."""
    import numpy as np

    position = np.arange(numbers.shape[1])[None, :]
    begins = np.concatenate([np.ones((len(numbers), 1), dtype=np.bool_), np.diff(numbers, axis=1) != 0], axis=1)
    return position - np.maximum.accumulate(np.where(begins, position, 0), axis=1)


@dataclass(frozen=True)
class SeparateDocuments:
    """A collator whose documents do not see each other: positions restart with each, and masks are block diagonal.

    The label of a document's last token is taken back where the next token is asked, for it is another document's.
    """

    collate: Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]
    end: int
    """The token that ends a document."""
    causal: bool
    """Whether the objective asks for the next token."""
    masks: bool = True
    """Whether there are masks; without them, the model's attention must go by the positions."""

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch, with `position_ids` (batch, length) and a mask of (batch, 1, query, key) in `attention_mask`."""
        import numpy as np
        import torch

        batch = self.collate(examples)
        ids = batch["input_ids"].numpy()
        numbers = documents(ids, self.end)
        if self.causal:
            batch["labels"] = batch["labels"].masked_fill(torch.from_numpy(ids == self.end), IGNORED)
        if not self.masks:
            real = batch.pop("attention_mask").numpy() != 0  # (batch, length): padding is a sequence of its own
            batch["position_ids"] = torch.from_numpy(restarted(np.where(real, numbers, -1)))
            return batch
        allowed = numbers[:, :, None] == numbers[:, None, :]
        given = batch["attention_mask"].numpy()
        if given.ndim == 4:
            allowed &= given[:, 0] == 0
        else:
            prefix = batch.pop("prefix_length", None)
            if self.causal:
                allowed &= earlier(ids.shape[1], None if prefix is None else prefix.numpy())
            allowed &= (given[:, None, :] != 0) | np.eye(ids.shape[1], dtype=np.bool_)
        batch["attention_mask"] = torch.from_numpy(additive(allowed))
        batch["position_ids"] = torch.from_numpy(restarted(numbers))
        return batch
