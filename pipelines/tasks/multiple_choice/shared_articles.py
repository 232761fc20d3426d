"""Questions with options on one article: a common prefix is read once, its keys and values are kept.

Possible where a token knows nothing of those behind it, that is in decoders: an article of RACE stands at the
beginning of about sixteen sequences (four questions with four options). A bidirectional encoder, and the encoder of
an encoder-decoder, reads every token of the article in the light of the option, so that nothing can be shared there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from pipelines.data.ragged import padded_tensors
from pipelines.models.predict import InferenceOptions, answers
from pipelines.tasks.multiple_choice.training import EncodedChoices

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEAST = 16
"""Tokens that sequences must have in common for it to pay."""
LEAST_OPERATIONS = {"no": 1e12, "bf16": 8e12}
"""Of a batch of whole sequences on a GPU, 2 for each weight and token, for it to pay: a smaller one takes the processor
longer to launch than the GPU to compute, and what is shared is launched twice (docs/performance-gpu.md)."""
TOLERANCE = {"no": 1e-4, "bf16": 3e-2}
"""By which the first batch may differ from what the plain way gives, for each unit and for the first."""


@dataclass(frozen=True)
class Article:
    """The questions that begin alike."""

    questions: Sequence[int]
    """Their places among the examples."""
    prefix: NDArray[np.int32]
    """What all of their sequences begin with (tokens,)."""
    rest: Sequence[NDArray[np.int32]]
    """What is left of each sequence, at least a token, question by question and option by option."""

    @property
    def tokens(self) -> int:
        """Tokens that are read of it."""
        return len(self.prefix) + sum(map(len, self.rest))


def can_share(model: PreTrainedModel) -> bool:
    """Whether a model's head goes on from kept keys and values: ours, on a decoder."""
    config = model.config
    return type(model).__name__ == "FineryForMultipleChoice" and getattr(config, "family", None) == "decoder"


def articles_of(texts: Sequence[str], examples: EncodedChoices) -> list[Article]:
    """The questions by the text that they are about, in the order in which the texts first occur."""
    by_text: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        by_text.setdefault(text, []).append(place)
    articles = []
    for places in by_text.values():
        sequences: list[NDArray[np.int32]] = [
            np.asarray(each) for place in places for each in examples.input_ids[place]
        ]
        common = _common(sequences)
        articles.append(Article(places, sequences[0][:common], [each[common:] for each in sequences]))
    return articles


def _common(sequences: Sequence[NDArray[np.int32]]) -> int:
    """How many tokens all of them begin with; each keeps at least one of its own."""
    shortest = min(map(len, sequences))
    table = np.stack([each[:shortest] for each in sequences])
    same = (table == table[0]).all(axis=0)
    return min(shortest - 1, int(same.argmin()) if not same.all() else shortest)


def pays(articles: Sequence[Article], model: PreTrainedModel, **running: Unpack[InferenceOptions]) -> bool:
    """Whether less is read, and a GPU has more to do than to wait for the next batch."""
    import torch

    if sum(len(each.prefix) for each in articles) < LEAST * len(articles):
        return False
    if torch.device(running.get("device", "cpu")).type == "cpu":
        return True
    sequences = sum(len(each.rest) for each in articles)
    tokens = sum(each.tokens + (len(each.rest) - 1) * len(each.prefix) for each in articles)
    operations = 2 * model.num_parameters(exclude_embeddings=True) * tokens / sequences * running.get("batch_size", 32)
    return bool(operations >= LEAST_OPERATIONS[running.get("precision", "no")])


def read_articles(
    model: PreTrainedModel, articles: Sequence[Article], choices: int, padding: int, **running: Unpack[InferenceOptions]
) -> tuple[list[NDArray[np.float32]], bool]:
    """((choices,) logits of each question in the order of the examples, whether articles were shared).

    The first batch is read both ways; where they differ, everything is read the plain way.
    """
    sequences = choices * max(len(each.questions) for each in articles)
    settings: InferenceOptions = {**running, "batch_size": max(1, running.get("batch_size", 32) // max(1, sequences))}
    tolerance = TOLERANCE[running.get("precision", "no")]
    shares: bool | None = None

    def answer(positions: list[int], device: Any) -> list[NDArray[np.float32]]:
        nonlocal shares
        batch = [articles[at] for at in positions]
        if shares is None:
            plain, shared = _plain(model, batch, padding, device), _shared(model, batch, padding, device)
            shares = all(
                np.allclose(one, other, rtol=tolerance, atol=tolerance)
                for one, other in zip(plain, shared, strict=True)
            )
            return plain
        return (_shared if shares else _plain)(model, batch, padding, device)

    article_logits = answers(model, [each.tokens for each in articles], answer, **settings)
    questions = sum(len(each.questions) for each in articles)
    by_question: list[Any] = [None] * questions
    for article, logits in zip(articles, article_logits, strict=True):
        for place, row in zip(article.questions, logits.reshape(-1, choices), strict=True):
            by_question[place] = row
    return by_question, bool(shares)


def _plain(model: PreTrainedModel, batch: Sequence[Article], padding: int, device: object) -> list[NDArray[np.float32]]:
    """Every sequence as a whole."""
    sequences = [np.concatenate([article.prefix, rest]) for article in batch for rest in article.rest]
    ids, real = padded_tensors(sequences, padding, device=device)
    logits = model(input_ids=ids[None], attention_mask=real[None]).logits[0]
    return _by_article(logits, batch)


def _shared(
    model: PreTrainedModel, batch: Sequence[Article], padding: int, device: object
) -> list[NDArray[np.float32]]:
    """The articles through the body of the model, then what is left of the sequences behind them."""
    import torch

    ids, seen = padded_tensors([each.prefix for each in batch], padding, on_the_left=True, device=device)
    places = (seen.cumsum(1) - 1).clamp(min=0)
    past = model.base_model(input_ids=ids, attention_mask=seen, position_ids=places, use_cache=True).past_key_values
    owners = torch.tensor([at for at, article in enumerate(batch) for _ in article.rest], device=device)
    past.batch_select_indices(owners)
    ids, real = padded_tensors([rest for article in batch for rest in article.rest], padding, device=device)
    starts = seen.sum(1)[owners]
    places = starts[:, None] + torch.arange(ids.shape[1], device=device)[None]
    mask = torch.cat([seen[owners], real], dim=1)
    logits = model(
        input_ids=ids[None], attention_mask=mask[None], position_ids=places[None], past_key_values=past
    ).logits[0]
    return _by_article(logits, batch)


def _by_article(logits: Any, batch: Sequence[Article]) -> list[NDArray[np.float32]]:
    ends = list(itertools.accumulate(len(article.rest) for article in batch))
    parts: list[NDArray[np.float32]] = np.split(logits.float().cpu().numpy(), ends[:-1])
    return parts
