"""What every kind of features is: a block of the FEATURES table that turns texts into vectors, without learning them.

A block is checked without torch, numpy or gensim; `open` imports what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipelines.core.config import Block, ConfigIssue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


@dataclass(frozen=True)
class Reading:
    """How texts are read."""

    context: Context
    model: str
    """Id of the stage whose model is read, or `model`."""
    max_length: int
    """Tokens after which a text is cut."""
    running: Mapping[str, Any]
    """Words of `models.predict.answers`: device, batch size, progress, precision."""


class Extractor(Protocol):
    """Texts to vectors."""

    def vectors(self, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """(layers, texts, width); of one layer where none are mixed. `name` tells parts of the data apart."""

    def details(self) -> dict[str, Any]:
        """What belongs beside the scores."""


class Features(Block):
    """Base of every kind of features."""

    name: str

    reads_model: ClassVar[bool] = False
    """Whether the recipe's model makes them."""

    @property
    def mixes(self) -> bool:
        """Whether layers are mixed by weights that are learnt with the classifier."""
        return False

    def issues(self, recipe: Recipe, model: str) -> Iterable[ConfigIssue]:
        """What does not fit the recipe, places relative to the block. `model` is the id of the stage that is read."""
        return ()

    def content(self) -> dict[str, str]:
        """Content hash of every piece of outside data and software that the vectors depend on. Raises DataError."""
        return {}

    def texts(self) -> Iterator[str]:
        """The text that the vectors are learnt from."""
        yield from ()

    def unavailable_reason(self) -> str | None:
        """What this machine has not got that they need, completing `the features word2vec …`."""
        return None

    def open(self, reading: Reading, needed: Iterable[str]) -> Extractor:
        """Ready to read. `needed` are all texts that will be asked for."""
        raise NotImplementedError
