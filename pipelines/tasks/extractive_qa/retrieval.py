"""Passages for questions: ranked by BM25 or by the cosine of embeddings, and how often the right one is found.

Lewis et al. 2020, "Retrieval-Augmented Generation", arxiv.org/abs/2005.11401, and Chen et al. 2017, "Reading Wikipedia
to Answer Open-Domain Questions", section 3, aclanthology.org/P17-1171: a retriever finds passages, a reader answers
from them. Here the reader is the span model that is scored.

BM25: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", equation 3.15 with the idf of equation 3.3
plus one inside the logarithm, as Lucene has it, so that no word counts against a passage. A word is what scikit-learn's
pattern `\\w+` finds, in lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.metrics.squad import normalised

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.tasks.extractive_qa.task import Retrieval

WORD = r"(?u)\b\w+\b"
AT_ONCE = 512
"""Questions that are ranked at a time, which bounds memory to so many rows of scores."""

Ranked = NDArray[np.int64]
"""Numbers of passages, the best first (questions, depth)."""


def rank(scores: Callable[[slice], NDArray[np.floating[Any]]], questions: int, depth: int) -> Ranked:
    """The best `depth` passages of each question, the first of equal ones first; `scores(some)` are those of some
    questions (some, passages)."""
    parts = []
    for start in range(0, questions, AT_ONCE):
        some = scores(slice(start, start + AT_ONCE))
        parts.append(np.argsort(-some, axis=1, kind="stable")[:, :depth])
    return np.concatenate(parts)


def bm25(questions: Sequence[str], passages: Sequence[str], settings: Retrieval, depth: int) -> Ranked:
    """Passages by BM25. A question whose words no passage has gets the first ones."""
    from scipy import sparse
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(token_pattern=WORD)
    try:
        counts = counter.fit_transform(passages).astype(np.float64)
    except ValueError:
        raise DataError("the passages hold no word that could be searched for") from None
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log1p((len(passages) - having + 0.5) / (having + 0.5))
    held_back = settings.k1 * (1 - settings.b + settings.b * lengths / max(lengths.mean(), 1e-9))
    entries = counts.tocoo()
    weights = entries.data * (settings.k1 + 1) / (entries.data + held_back[entries.row]) * idf[entries.col]
    weighed = sparse.csc_matrix((weights, (entries.col, entries.row)), shape=(counts.shape[1], len(passages)))
    asked = counter.transform(questions)
    return rank(lambda some: (asked[some] @ weighed).toarray(), len(questions), depth)


def cosine(questions: NDArray[np.float32], passages: NDArray[np.float32], depth: int) -> Ranked:
    """Passages by the cosine of embeddings (questions, width) and (passages, width)."""
    one, other = (
        each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in (questions, passages)
    )
    return rank(lambda some: one[some] @ other.T, len(one), depth)


def embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, **running: Any
) -> NDArray[np.float32]:
    """The mean of the last hidden states of each text's tokens (texts, width). `running` are the words of `answers`."""
    from pipelines.data.encoding import encode_texts
    from pipelines.models.predict import answers

    ids, _ = encode_texts(tokenizer, texts, max_length, "text")
    body = model.base_model

    def answer(positions: list[int], device: Any) -> NDArray[np.float32]:
        batch = tokenizer.pad({"input_ids": [ids[place] for place in positions]}, return_tensors="pt").to(device)
        states = body(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state.float()
        real = batch["attention_mask"][..., None]
        means: NDArray[np.float32] = ((states * real).sum(1) / real.sum(1).clamp(min=1)).cpu().numpy()
        return means

    found = answers(model, [len(each) for each in ids], answer, fills=True, **running)
    return np.stack(found).astype(np.float32)


def holds_answer(passage: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the passage word for word, by the words of the official SQuAD script."""
    words = f" {normalised(passage)} "
    return any(f" {text} " in words for each in answers if (text := normalised(each)))


def found_at(ranked: Ranked, passages: Sequence[str], rows: Any, gold: bool) -> Iterator[int | None]:
    """The place, from 0, of the first right passage of each question that has one to be found; None where it is not
    among those ranked.

    Right is the question's own context where `gold`, else every passage that holds one of the answers; questions
    without answers are left out there.
    """
    for places, context, answers in zip(ranked.tolist(), rows.pairs, rows.labels or [()] * len(rows), strict=True):
        if gold:
            yield next((at for at, place in enumerate(places) if passages[place] == context), None)
        elif answers:
            yield next((at for at, place in enumerate(places) if holds_answer(passages[place], answers)), None)


def recall(found: Sequence[int | None], depths: Sequence[int]) -> dict[str, float]:
    """Share of the questions whose right passage is among the first n, by `recall@n`."""
    return {
        f"recall@{depth}": sum(at is not None and at < depth for at in found) / len(found) for depth in depths if found
    }


def distinct(texts: Sequence[str]) -> list[str]:
    """Each text once, in the order of the first."""
    return list(dict.fromkeys(texts))
