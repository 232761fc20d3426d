"""GloVe: vectors whose products are the logarithms of how often words stand beside each other.

Pennington, Socher and Manning 2014, "GloVe: Global Vectors for Word Representation", aclanthology.org/D14-1162: section
4.2 has the window (a neighbour d words away counts 1/d), the sum of both tables as the result, and the settings;
equation 8 the loss, equation 9 the weights; AdaGrad is Duchi et al. 2011. Counts and steps are products of sparse
matrices: a chunk of the text, then a batch of the counts at a time.

The authors' program steps after each count, by threads that do not wait for each other. Here the gradients of a batch
are added up first, so that a seed gives the same vectors every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipelines.evaluation.features.word_vectors import CorpusFile, StaticVectors, WordVectors, pause

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipelines.core.interfaces import Context

    Floats = NDArray[np.float32]

CHUNK = 500_000
"""Words that are counted at a time."""
BATCH = 65_536
"""Counts a step, at most,"""
STEPS = 100
"""so that an epoch has this many steps where there are enough counts."""
FEWEST = 16
"""Counts a step, at least."""


class GloVe(StaticVectors):
    """The mean of GloVe vectors, trained here or read from a file."""

    name: Literal["glove"] = "glove"
    window: int = Field(10, ge=1, le=1000)
    """Words to either side that count as a word's neighbours; one that is d words away counts 1/d."""
    epochs: int = Field(25, ge=1)
    """How often the counts are gone through."""
    x_max: float = Field(100.0, gt=0)
    """The count from which on a pair has its full weight."""
    alpha: float = Field(0.75, gt=0)
    """Rarer pairs weigh (count / x_max) to the power of this."""
    learning_rate: float = Field(0.05, gt=0)
    """Of AdaGrad."""

    def train(self, corpus: CorpusFile, context: Context) -> WordVectors:
        """Count neighbours, then fit the vectors to the logarithms."""
        counts = cooccurrences(corpus, self.window, context)
        vectors, loss = fit(counts, self, context)
        facts = {"size": self.size, "words": corpus.words, "pairs": int(counts.nnz), "loss": loss}
        return WordVectors(list(corpus.counts), vectors, facts)


def cooccurrences(corpus: CorpusFile, window: int, context: Context) -> Any:
    """How often each pair of known words stands within the window, weighed 1/d; scipy CSR (words, words), symmetric.

    Unknown words are passed over, so that those around them become neighbours, as in the authors' program.
    """
    import numpy as np
    from scipy import sparse

    size = len(corpus.counts)
    shape = (size, size)
    total = sparse.csr_matrix(shape, dtype=np.float64)
    done = 0
    for ids, line in _chunks(corpus):
        pause(context)
        # One way alone; the other is its mirror.
        parts = [(ids[:-d], ids[d:], line[:-d] == line[d:], 1.0 / d) for d in range(1, min(window, len(ids) - 1) + 1)]
        left = np.concatenate([one[same] for one, _, same, _ in parts] or [ids[:0]])
        right = np.concatenate([other[same] for _, other, same, _ in parts] or [ids[:0]])
        weights = np.concatenate([np.full(int(same.sum()), weight) for *_, same, weight in parts] or [np.empty(0)])
        total = total + sparse.csr_matrix((weights, (left, right)), shape=shape)
        done += len(ids)
        context.events.emit("progress", step=min(done, corpus.words), total=corpus.words, what="counting neighbours")
    both = (total + total.T).tocsr()
    both.sort_indices()
    return both


def _chunks(corpus: CorpusFile) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """(ids of known words, the line that each stands in) of some whole lines at a time."""
    import numpy as np

    ids = {word: row for row, word in enumerate(corpus.counts)}
    rows: list[NDArray[np.int32]] = []
    held = 0
    for words in corpus.sequences():
        every = np.fromiter(map(ids.get, words, repeat(-1)), dtype=np.int32, count=len(words))
        rows.append(every[every >= 0])
        held += len(rows[-1])
        if held >= CHUNK:
            yield np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            rows, held = [], 0
    if held:
        yield np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(row) for row in rows])


def weight_of(counts: Floats, x_max: float, alpha: float) -> Floats:
    """Equation 9: (x / x_max)^alpha below x_max, then 1."""
    import numpy as np

    return np.asarray(np.minimum(counts / x_max, 1.0) ** alpha, dtype=np.float32)


class Tables:
    """Both tables with their biases, (words, size + 1) each, the bias last; and AdaGrad's sums of squared gradients."""

    def __init__(self, words: int, size: int, seed: int) -> None:
        import numpy as np

        random = np.random.default_rng(seed)
        # As the authors' program: uniform within half a unit over the size.
        self.tables: list[Floats] = [
            (random.random((words, size + 1), dtype=np.float32) - np.float32(0.5)) / np.float32(size + 1)
            for _ in range(2)
        ]
        self.squares: list[Floats] = [np.ones((words, size + 1), dtype=np.float32) for _ in range(2)]

    def errors(self, rows: NDArray[Any], columns: NDArray[Any], counts: Floats) -> Floats:
        """w · w~ + b + b~ - log X of each pair (pairs,)."""
        import numpy as np

        one, other = self.tables[0][rows], self.tables[1][columns]
        products = np.einsum("pd,pd->p", one[:, :-1], other[:, :-1])
        errors: Floats = products + one[:, -1] + other[:, -1] - np.log(counts)
        return errors

    def gradients(self, rows: NDArray[Any], columns: NDArray[Any], slopes: Floats) -> list[Floats]:
        """Of half of equation 8, summed over the pairs; `slopes` are f(X) times the error (pairs,)."""
        import numpy as np
        from scipy import sparse

        words = len(self.tables[0])
        pairs = sparse.csr_matrix((slopes, (rows, columns)), shape=(words, words))
        ones = np.ones((words, 1), dtype=np.float32)
        return [
            pairs @ np.hstack([self.tables[1][:, :-1], ones]),
            pairs.T @ np.hstack([self.tables[0][:, :-1], ones]),
        ]

    def step(self, gradients: list[Floats], learning_rate: float) -> None:
        """AdaGrad, whose sums of squares begin at 1."""
        import numpy as np

        for table, squares, gradient in zip(self.tables, self.squares, gradients, strict=True):
            squares += gradient**2
            table -= learning_rate * gradient / np.sqrt(squares)


def fit(counts: Any, settings: GloVe, context: Context) -> tuple[Floats, float]:
    """(w + w~ (words, size), the loss of equation 8 a pair in the last epoch)."""
    import numpy as np

    pairs = counts.tocoo()
    tables = Tables(counts.shape[0], settings.size, context.seed)
    each = max(FEWEST, min(BATCH, -(-pairs.nnz // STEPS)))
    loss = 0.0
    for epoch in range(settings.epochs):
        order = np.random.default_rng([context.seed, epoch]).permutation(pairs.nnz)
        loss = 0.0
        for start in range(0, pairs.nnz, each):
            some = order[start : start + each]
            rows, columns, values = pairs.row[some], pairs.col[some], pairs.data[some].astype(np.float32)
            errors = tables.errors(rows, columns, values)
            slopes = weight_of(values, settings.x_max, settings.alpha) * errors
            loss += float(slopes @ errors)
            tables.step(tables.gradients(rows, columns, slopes), settings.learning_rate)
            pause(context)
        context.events.emit("progress", step=epoch + 1, total=settings.epochs, what="GloVe", loss=loss / pairs.nnz)
    vectors = (tables.tables[0] + tables.tables[1])[:, :-1]
    return np.ascontiguousarray(vectors, dtype=np.float32), loss / max(1, pairs.nnz)
