"""Held-out text through the objective that a model was pretrained with, beside models of one and two tokens.

What can be said depends on the objective:

- causal_lm gives the likelihood of the text: documents lie in windows, and every token is predicted exactly once.
- prefix_lm and permutation_lm give the likelihood of the part that they predict, given the rest.
- masked_lm, span_corruption, denoising and the objectives on pairs define no likelihood of the text; what they give
  is the cross-entropy of the hidden tokens, each judged by itself, and how many were named rightly. bidirectional_lm
  names every token twice, from either side: what it gives is the mean of both likelihoods within a block.
- replaced_token_detection predicts no tokens; what it gives is how well replaced ones are told from original ones.

`bits_per_byte` is the negative log-likelihood in bits over the bytes of the predicted text (Gao et al. 2020, "The
Pile", section 3.1, arxiv.org/abs/2101.00027). Special tokens stand for no text and are not counted. Where they say
that a hidden span ends (span_corruption), a token is judged given that text goes on: the models of one and of two
tokens are not asked where spans end either. Where a part of the text is predicted, a token counts with the bytes that
its kind has on average in the measured text, which for tokenizers that keep the text is exact. Masks and orders are
drawn with MASK_SEED, whatever seed the model was trained with.

A window of causal_lm is as long as what the model was trained on. It reads the token before each one that it predicts,
and for the first of a document the end of another. The next window moves on by `stride` tokens and predicts those only:
a smaller stride shows them more of what came before, and costs more windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import IGNORED, World
from pipelines.data.documents import Documents, read_documents
from pipelines.evaluation.ngrams import NGrams
from pipelines.metrics.perplexity import Sums, Tally, detection, hidden, likelihood

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WindowBatch:
    """Some windows, filled up on the right."""

    input_ids: Ints
    """(windows, length)"""
    real: npt.NDArray[np.bool_]
    """Where there is text (windows, length)."""
    labels: Ints
    """The token that each position predicts, -100 where it is predicted by another window (windows, length)."""
    places: Ints
    """Which token of the documents each label is (windows, length)."""
    documents: Ints
    """(windows,)"""


@dataclass(frozen=True)
class TokenWindows:
    """All windows of some documents."""

    stream: Ints
    """Every document's tokens, behind the end of another document (tokens + documents,)."""
    first: Ints
    """Where each window begins in the stream (windows,)."""
    last: Ints
    """One past where it ends (windows,)."""
    predicted: Ints
    """How many of its last positions it predicts from (windows,)."""
    documents: Ints
    """(windows,)"""

    def __len__(self) -> int:
        return len(self.first)

    def batch(self, low: int, high: int, padding: int) -> WindowBatch:
        """The windows from `low` to `high`."""
        first, last = self.first[low:high, None], self.last[low:high, None]
        place = first + np.arange((last - first).max())[None, :]
        real = place < last
        predicted = real & (place >= last - self.predicted[low:high, None])
        place = np.minimum(place, len(self.stream) - 2)
        documents = self.documents[low:high]
        return WindowBatch(
            np.where(real, self.stream[place], padding),
            real,
            np.where(predicted, self.stream[place + 1], IGNORED),
            place - documents[:, None],
            documents,
        )


def rolling(documents: Documents, length: int, stride: int, end: int) -> TokenWindows:
    """Windows of at most `length` tokens, `stride` apart. `end` stands before each document."""
    stream = np.insert(documents.tokens, documents.starts[:-1], end)
    sizes = np.diff(documents.starts)
    counts = 1 + -(-np.maximum(sizes - length, 0) // stride)
    document = np.repeat(np.arange(len(documents)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    size = sizes[document]
    until = np.minimum(length + number * stride, size)
    predicted = until - np.where(number > 0, length + (number - 1) * stride, 0)
    base = documents.starts[document] + document
    return TokenWindows(stream, base + np.maximum(until - length, 0), base + until, predicted, document)


@dataclass(frozen=True)
class Pieces:
    """Documents joined and cut as for training: rows of equal length, what does not fill one left out."""

    rows: Ints
    """(pieces, length)"""
    before: Ints
    """The token before each piece (pieces,)."""
    documents: Ints
    """The document in which each piece begins (pieces,)."""


def pieces(documents: Documents, length: int, end: int) -> Pieces:
    """Pieces of `length` tokens of the documents, each document followed by `end`."""
    stream = np.insert(documents.tokens, documents.starts[1:], end)
    count = len(stream) // length
    begins = np.arange(count) * length
    ends = documents.starts[1:] + np.arange(1, len(documents) + 1)
    before = np.where(begins > 0, stream[begins - 1], end) if count else begins
    return Pieces(stream[: count * length].reshape(count, length), before, np.searchsorted(ends, begins, side="right"))


MASK_SEED = 20_181_011
"""What is hidden of a text is the same for every model."""
MOST_LOGITS = 2**26
"""Numbers of a batch's output, so that long windows and large vocabularies fit into memory."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class HeldOutScores:
    """The figures of one data set."""

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    peers: dict[str, dict[str, float]]
    """The same figures of the models of one and of two tokens, where they are defined."""
    documents: int
    """How many documents were measured."""


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens of a vocabulary that stand for no text."""

    special: npt.NDArray[np.bool_]
    """For each id, whether it is such a token; the unknown token is not (vocabulary,)."""
    sentinel: npt.NDArray[np.bool_]
    """Whether it stands for a place in the text, as `<extra_id_0>` does (vocabulary,)."""
    end: int
    """The token between documents."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, end: int) -> SpecialTokens:
        """Those of a tokenizer."""
        special, sentinel = (np.zeros(len(tokenizer), dtype=np.bool_) for _ in range(2))
        special[[each for each in tokenizer.all_special_ids if each != tokenizer.unk_token_id]] = True
        named = {getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "bos", "eos", "cls", "sep", "mask")}
        sentinel[[each for each in tokenizer.all_special_ids if each not in named]] = True
        return cls(special, sentinel, end)


@dataclass(frozen=True)
class HeldOutModel:
    """A model, and everything it takes to ask it about text."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    objective: Any
    collate: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    """The objective's own, drawing with MASK_SEED."""
    block_size: int
    stride: int
    batch_size: int
    device: torch.device
    world: World
    gather: Callable[[Any], list[Any]]
    progress: Progress | None = None

    @property
    def end(self) -> int:
        """The token that stands between documents. Raises DataError."""
        from pipelines.data.packing import end_of_text

        return end_of_text(self.tokenizer)

    @cached_property
    def marks(self) -> SpecialTokens:
        """The special tokens."""
        return SpecialTokens.of(self.tokenizer, self.end)

    def examples_at_once(self) -> int:
        """Windows of a batch."""
        return max(1, min(self.batch_size, MOST_LOGITS // (self.block_size * len(self.tokenizer))))


def measure(
    reader: HeldOutModel, texts: Iterable[str], ngrams: NGrams | None, cache: Path, key: str, seed: int
) -> HeldOutScores:
    """The figures of some texts; `key` names them and the tokenizer. Without `ngrams` there are no peers."""
    import torch

    from pipelines.models.attention_by_size import attention_by_size
    from pipelines.models.packed_linear import packed

    documents = read_documents(reader.tokenizer, texts)
    reader.model.to(device=reader.device, dtype=torch.float32).eval()
    with packed(reader.model), attention_by_size(reader.model):
        return _measured(reader, texts, documents, ngrams, cache, key, seed)


def _measured(
    reader: HeldOutModel,
    texts: Iterable[str],
    documents: Documents,
    ngrams: NGrams | None,
    cache: Path,
    key: str,
    seed: int,
) -> HeldOutScores:
    if reader.objective.every_token:
        return _in_words_of(likelihood, _tally(reader, documents, *_windows(reader, documents), ngrams), seed, ngrams)
    examples, owners, before = _laid_out(reader, documents, texts, cache, key)
    if "replaced" in reader.objective.label_names:
        return _in_words_of(detection, _judged(reader, examples, owners), seed, None)
    answer = partial(_answers, reader, examples, before)
    compute = likelihood if "bits_per_byte" in reader.objective.text_scores else hidden
    return _in_words_of(compute, _tally(reader, documents, len(examples), answer, owners, ngrams), seed, ngrams)


def _in_words_of(
    compute: Callable[[Sums], dict[str, float]], tally: Tally, seed: int, ngrams: NGrams | None
) -> HeldOutScores:
    """The tally as figures: the model's own, then how much they stand on, then the peers'."""
    metrics = tally.figures(compute)
    around = tally.intervals(compute, seed)
    counts = {
        name: int(tally.columns[name].sum())
        for name in ("tokens", "bytes", "pairs", "replaced")
        if name in tally.columns
    }
    peers: dict[str, dict[str, float]] = {}
    for peer in ("unigram", "bigram") if ngrams is not None else ():
        sums = {name: float(column.sum()) for name, column in tally.columns.items()} | {
            "bits": float(tally.columns[peer].sum())
        }
        peers[peer] = {name: value for name, value in compute(sums).items() if "accuracy" not in name}
    if compute is detection:
        total, replaced = tally.columns["tokens"].sum(), tally.columns["replaced"].sum()
        peers["majority"] = {"accuracy": float(max(replaced, total - replaced) / total)}
    beside = {
        f"{peer}_{name}": value
        for peer, figures in peers.items()
        for name, value in figures.items()
        if name != "perplexity"
    }
    return HeldOutScores(metrics | counts | beside, around, peers, len(tally.documents))


@dataclass(frozen=True)
class TokenPredictions:
    """What the model says about the tokens that a batch asks for, in the order of rows and positions."""

    row: Ints
    """The row of the batch that each one stands in (asked,)."""
    token: Ints
    """The right answer (asked,)."""
    left: Ints
    """The token before it in the text (asked,)."""
    bits: Floats
    """-log2 of its probability (asked,)."""
    right: npt.NDArray[np.bool_]
    """Whether it is what the model finds most probable (asked,)."""
    places: Ints | None = None
    """Which token of the documents it is, where that is known (asked,)."""
    pairs: tuple[Ints, npt.NDArray[np.bool_]] | None = None
    """(rows, whether their pair was judged rightly) of objectives on pairs."""


def _windows(reader: HeldOutModel, documents: Documents) -> tuple[int, Callable[[int, int], TokenPredictions], Ints]:
    """(how many windows there are, what the model says about some of them, the document of each)."""
    import torch

    windows = rolling(documents, reader.block_size, reader.stride, reader.end)
    padding = reader.tokenizer.pad_token_id or 0

    def ask(low: int, high: int) -> TokenPredictions:
        batch = windows.batch(low, high, padding)
        inputs = {
            "input_ids": torch.from_numpy(batch.input_ids),
            "attention_mask": torch.from_numpy(batch.real.astype(np.int64)),
        }
        wanted = batch.labels != IGNORED
        bits, right, _ = _asked(reader, inputs, batch.labels, wanted)
        row = np.nonzero(wanted)[0]
        return TokenPredictions(row, batch.labels[wanted], batch.input_ids[wanted], bits, right, batch.places[wanted])

    return len(windows), ask, windows.documents


def _answers(reader: HeldOutModel, examples: Any, before: Ints, low: int, high: int) -> TokenPredictions:
    """What the model says about the examples from `low` to `high`, damaged as the objective does."""
    from pipelines.objectives.losses import pair_logits

    drawn = [{**examples[position], "draw": position} for position in range(low, high)]
    batch = reader.collate(drawn)
    labels = batch["labels"].numpy()
    wanted = (labels != IGNORED) & ~reader.marks.special[np.maximum(labels, 0)]
    if (unseen := getattr(reader.collate, "hidden", None)) is not None:
        wanted &= unseen(drawn)
    inputs = {name: value for name, value in batch.items() if name not in reader.objective.label_names}
    bits, right, outputs = _asked(
        reader, inputs, labels, wanted, reader.marks.special if reader.objective.marks_spans else None
    )
    left = left_neighbours(
        {name: value.numpy() for name, value in batch.items()},
        before[low:high],
        reader.marks,
        next_token=reader.objective.head.kind == "causal_lm",
        wrapped=reader.objective.layout == "blocks",
    )
    pairs = None
    for name in reader.objective.label_names:
        if name != "labels":
            judged = pair_logits(outputs).argmax(-1).cpu() == batch[name]
            pairs = np.arange(high - low), judged.numpy()
    return TokenPredictions(np.nonzero(wanted)[0], labels[wanted], left[wanted], bits, right, pairs=pairs)


def _asked(
    reader: HeldOutModel,
    inputs: Mapping[str, Any],
    labels: Ints,
    wanted: npt.NDArray[np.bool_],
    never: npt.NDArray[np.bool_] | None = None,
) -> tuple[Floats, npt.NDArray[np.bool_], Any]:
    """(-log2 probabilities of the wanted labels, whether each is the most probable token, the model's outputs).

    Probabilities are those given that the token is none of `never` (vocabulary,).
    """
    import torch

    from pipelines.models.log_probabilities import distributions_of, log_probabilities_of

    places = torch.from_numpy(wanted).to(reader.device)
    target = torch.from_numpy(labels[wanted]).to(reader.device)
    loss, right = np.empty(len(target)), np.empty(len(target), dtype=np.bool_)
    with torch.inference_mode():
        given = {name: value.to(reader.device) for name, value in inputs.items()}
        outputs, said = distributions_of(reader.model, given, places)
        for part, logits in said.in_chunks():  # (some, vocabulary)
            if never is not None:
                logits[:, torch.from_numpy(np.flatnonzero(never)).to(logits.device)] = -torch.inf
            loss[part] = -log_probabilities_of(logits, target[part]).double().cpu().numpy()
            right[part] = (logits.argmax(-1) == target[part]).cpu().numpy()
    if not np.isfinite(loss).all():
        raise ModelError(
            "the model gives NaN or infinity for held-out text: its training diverged, so lower its learning rate"
        )
    return loss / np.log(2), right, outputs


def left_neighbours(
    batch: Mapping[str, npt.NDArray[Any]],
    before: Ints,
    marks: SpecialTokens,
    *,
    next_token: bool,
    wrapped: bool,
) -> Ints:
    """The token before each label in the true text, in the shape of the labels.

    `before` is the token before each example (batch,), `next_token` whether labels are the tokens that follow in the
    input, `wrapped` whether the layout put one special token before the text. A special token on the left stands
    between documents, as `end` does, but a sentinel for the place that it has in the input.
    """
    ids, labels = batch["input_ids"], batch["labels"]
    first = [1]
    """Where the label is the first token of the text."""
    if labels.shape[1] == 2 * ids.shape[1]:  # the token behind each one, then the one before it
        left = np.concatenate([ids, _shifted(_shifted(ids, before), before)], axis=1)
        first = [0, ids.shape[1] + 2]
    elif "decoder_input_ids" in batch:
        left = _behind_sentinels(ids, batch["decoder_input_ids"], marks)
    elif "target_mapping" in batch:
        left = np.take_along_axis(_shifted(ids, before), batch["target_mapping"].argmax(-1), axis=1)  # (batch, asked)
    elif next_token:
        left = ids
    else:
        left = _shifted(np.where(labels == IGNORED, ids, labels), before)
    left = np.where(marks.special[left], marks.end, left)
    if wrapped:
        left[:, first] = before[:, None]
    return left


def _shifted(ids: Ints, before: Ints) -> Ints:
    return np.concatenate([before[:, None], ids[:, :-1]], axis=1)


def _behind_sentinels(ids: Ints, written: Ints, marks: SpecialTokens) -> Ints:
    """What the decoder has read, each sentinel replaced by the token before it in the input."""
    row, place = np.nonzero(marks.sentinel[ids[:, 1:]])
    table = np.full((len(ids), len(marks.special)), marks.end, dtype=np.int64)
    table[row, ids[row, place + 1]] = ids[row, place]
    return np.where(marks.sentinel[written], np.take_along_axis(table, written, axis=1), written)


def _laid_out(
    reader: HeldOutModel, documents: Documents, texts: Iterable[str], cache: Path, key: str
) -> tuple[Any, Ints, Ints]:
    """(examples, the document of each, the token before each) as for training. Raises DataError without one."""
    layout, length = reader.objective.layout, reader.objective.raw_length(reader.block_size)
    if layout == "sentences":
        from pipelines.data.sentences import lay_out

        spans: Any = lay_out(layout, reader.tokenizer, texts, length, cache, key)
        return spans, np.asarray(spans.document), np.full(len(spans), reader.end)
    tokenizer = reader.tokenizer
    wrapped = layout == "blocks"
    blocks = pieces(documents, length, tokenizer.sep_token_id if wrapped else reader.end)
    if not len(blocks.rows):
        raise DataError(
            f"the held-out text has {len(documents.tokens)} tokens, too few for one block of {reader.block_size}; "
            "give more rows, or raise max_eval_samples"
        )
    rows = blocks.rows
    if wrapped:
        first, last = (np.full((len(rows), 1), each) for each in (tokenizer.cls_token_id, tokenizer.sep_token_id))
        rows = np.hstack([first, rows, last])
    return [{"input_ids": row} for row in rows], blocks.documents, blocks.before


def _tally(
    reader: HeldOutModel,
    documents: Documents,
    count: int,
    ask: Callable[[int, int], TokenPredictions],
    owners: Ints,
    ngrams: NGrams | None,
) -> Tally:
    """Everything that is added up, by document."""
    mean = documents.mean_bytes(len(reader.tokenizer))
    parts: list[dict[str, npt.NDArray[Any]]] = []
    for low, high in _shares(reader, count):
        predictions = ask(low, high)
        part: dict[str, npt.NDArray[Any]] = {
            "owner": owners[low:high][predictions.row],
            "bits": predictions.bits,
            "right": predictions.right,
            "tokens": np.ones(len(predictions.row)),
            "bytes": mean[predictions.token] if predictions.places is None else documents.sizes[predictions.places],
        }
        if ngrams is not None:
            part["unigram"] = ngrams.unigram_bits(predictions.token)
            part["bigram"] = ngrams.bigram_bits(predictions.left, predictions.token)
        if predictions.pairs is not None:
            rows, right = predictions.pairs
            blank = {name: np.zeros(len(rows)) for name in part} | {"owner": owners[low:high][rows]}
            judged = {"pairs": np.ones(len(rows)), "pairs_right": right.astype(np.float64)}
            nothing = {name: np.zeros(len(predictions.row)) for name in judged}
            part = {name: np.concatenate([each, (blank | judged)[name]]) for name, each in (part | nothing).items()}
        parts.append(part)
    return _gathered(reader, parts)


def _judged(reader: HeldOutModel, examples: Any, owners: Ints) -> Tally:
    """How well replaced tokens are told from original ones, by document. The generator fills in what is judged."""
    import torch

    parts: list[dict[str, npt.NDArray[Any]]] = []
    for low, high in _shares(reader, len(examples)):
        batch = reader.collate([{**examples[position], "draw": position} for position in range(low, high)])
        with torch.inference_mode():
            _, outputs = reader.objective.loss(
                reader.model, {name: value.to(reader.device) for name, value in batch.items()}
            )
        judged = batch["replaced"].numpy() != IGNORED
        predicted = outputs["logits"].argmax(-1).cpu().numpy()[judged] == 1
        true = outputs["replaced"].cpu().numpy()[judged] == 1
        values: dict[str, npt.NDArray[Any]] = {
            "right": predicted == true,
            "tokens": np.ones(len(true)),
            "replaced": true,
            "found": predicted & true,
            "missed": true & ~predicted,
            "false_alarms": predicted & ~true,
        }
        owner = owners[low:high][np.nonzero(judged)[0]]
        parts.append({name: each.astype(np.float64) for name, each in (values | {"owner": owner}).items()})
    return _gathered(reader, parts)


def _shares(reader: HeldOutModel, count: int) -> Iterator[tuple[int, int]]:
    """(low, high) of this process's batches. The batches do not depend on the number of processes."""
    size = reader.examples_at_once()
    for number, low in enumerate(range(0, count, size)):
        if number % reader.world.size == reader.world.rank:
            yield low, min(low + size, count)
        if reader.progress is not None:
            reader.progress(min(low + size, count), count)


def _gathered(reader: HeldOutModel, parts: list[dict[str, npt.NDArray[Any]]]) -> Tally:
    """The parts of all processes as one tally, in the order of the batches."""
    by_rank = reader.gather(parts)
    ordered = [by_rank[number % len(by_rank)][number // len(by_rank)] for number in range(sum(map(len, by_rank)))]
    joined = {name: np.concatenate([part[name] for part in ordered]) for name in ordered[0]}
    owner = joined.pop("owner").astype(np.int64)
    if not len(owner):
        raise DataError("the held-out text has no token that the objective asks for; give more rows")
    return Tally.of(owner, joined)
