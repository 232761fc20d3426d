"""Overlap of what is evaluated with what led to the model: exact duplicates, and runs of words that both have.

Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C, arxiv.org/abs/2005.14165: an example counts as
seen when a run of N of its words stands in the training text, where N is the 5th percentile of the examples' lengths,
but at least 8 and at most 13 words. Shorter examples are compared as wholes only. Texts are compared by their words
alone: a word is a run of ASCII letters and digits and of characters beyond ASCII, in lower case.

All words of many texts are hashed at once, a hundred megabytes in seconds: the hash of a run of bytes is a polynomial
in them, so each is a difference of two running sums (Karp and Rabin 1987, "Efficient randomized pattern-matching
algorithms"), modulo 2^64 and then mixed. Two different runs get the same 64-bit hash about once in 10^19 pairs.

The training rows of every stage before, pretraining text included, are compared with the rows that are scored. What a
checkpoint learnt before this recipe is not known here, and the report says so. What was found is kept in
`FINERY_HOME/data` under a name made from the content of both sides, so that the cells of a study look once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.core.files import write_json
from pipelines.core.interfaces import Context, Rows, Score
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.tasks.text_to_text import AsText

Hashes = NDArray[np.uint64]
BATCH = 1 << 20
"""Bytes that are hashed at once."""
BASE = 0x9E3779B97F4A7C15
"""An odd number: it has an inverse modulo 2^64."""
ENDS = "\0"
"""Stands between two texts; a text that holds it is read as if a space stood there."""


@dataclass(frozen=True)
class HashedWords:
    """The words of some texts, one after another."""

    hashes: Hashes
    """(words,)"""
    starts: NDArray[np.int64]
    """Number of the first word of each text, and behind the last the number of words (texts + 1,)."""

    def whole(self) -> Hashes:
        """One hash a text, of all its words in order (texts,). Texts that differ in case or punctuation alone
        share theirs."""
        lengths = np.diff(self.starts)
        return _mixed(_sums(self.hashes, self.starts[:-1], self.starts[1:]) + lengths.astype(np.uint64))

    def runs(self, length: int) -> tuple[Hashes, NDArray[np.int64]]:
        """(hash, number of the first word) of every run of so many words within one text."""
        lengths = np.diff(self.starts)
        count = np.maximum(lengths - length + 1, 0)
        first = np.repeat(self.starts[:-1] - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(
            count.sum()
        )
        hashes = np.zeros(len(first), dtype=np.uint64)
        for step in range(length):
            hashes = hashes * np.uint64(BASE) + self.hashes[first + step]
        return _mixed(hashes), first


def words_of(texts: Sequence[str]) -> HashedWords:
    """The words of the texts."""
    if not texts:
        return HashedWords(np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64))
    joined = ENDS.join(text.replace(ENDS, " ") for text in texts).lower().encode("utf-8", "replace")
    raw = np.frombuffer(joined, dtype=np.uint8)
    inside = _word_bytes()[raw]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    hashes = _mixed(_sums(raw.astype(np.uint64) + np.uint64(1), begins, ends))
    borders = np.flatnonzero(raw == 0)
    starts = np.concatenate([[0], np.searchsorted(begins, borders), [len(begins)]])
    return HashedWords(hashes, starts.astype(np.int64))


def batched(texts: Iterable[str], size: int = BATCH) -> Iterator[list[str]]:
    """The texts in lists of about `size` characters, so that memory does not grow with their number."""
    batch: list[str] = []
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _sums(values: Hashes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Hashes:
    """The polynomial hash of each slice of `values`, whose coefficients begin at 1 wherever it stands."""
    powers, inverses = _powers(len(values))
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values * powers[: len(values)], dtype=np.uint64)])
    sums: Hashes = (running[ends] - running[begins]) * inverses[begins]
    return sums


def _mixed(values: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the value: Stafford's variant 13 of MurmurHash3's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


_KEPT: dict[str, Hashes] = {}


def _powers(count: int) -> tuple[Hashes, Hashes]:
    """(BASE^0 … BASE^count, the same of its inverse), modulo 2^64."""
    if "powers" not in _KEPT or len(_KEPT["powers"]) <= count:
        size = max(count + 1, 1 << 16)
        for name, base in (("powers", BASE), ("inverses", pow(BASE, -1, 1 << 64))):
            factors = np.full(size, base, dtype=np.uint64)
            factors[0] = 1
            _KEPT[name] = np.cumprod(factors, dtype=np.uint64)
    return _KEPT["powers"], _KEPT["inverses"]


@cache
def _word_bytes() -> NDArray[np.bool_]:
    """Whether each byte belongs to a word (256,)."""
    is_word = np.zeros(256, dtype=bool)
    for first, last in ((ord("0"), ord("9")), (ord("a"), ord("z")), (0x80, 0xFF)):
        is_word[first : last + 1] = True
    return is_word


SHORTEST, LONGEST = 8, 13
"""Words of a run. GPT-3's bounds."""
PERCENTILE = 5
SIEVE_BITS = 24
"""Of the table that lets most runs pass by without a search: 16 MB."""


def run_length(words: NDArray[np.int64]) -> int:
    """N, from the lengths of the examples in words (examples,)."""
    return int(np.clip(np.floor(np.percentile(words, PERCENTILE)), SHORTEST, LONGEST)) if len(words) else LONGEST


@dataclass
class Seen:
    """A set of hashes that is looked for, and where each was found first."""

    wanted: Hashes
    """Sorted, each once."""
    where: NDArray[np.int16] = field(init=False)
    """For each: the number of the source that has it, -1 while none has."""
    sieve: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.where = np.full(len(self.wanted), -1, dtype=np.int16)
        self.sieve = np.zeros(1 << SIEVE_BITS, dtype=bool)
        self.sieve[self.wanted >> np.uint64(64 - SIEVE_BITS)] = True

    def look(self, hashes: Hashes, source: int) -> None:
        """Mark those of the wanted hashes that are among `hashes`."""
        if not len(self.wanted):
            return
        likely = hashes[self.sieve[hashes >> np.uint64(64 - SIEVE_BITS)]]
        place = np.minimum(np.searchsorted(self.wanted, likely), len(self.wanted) - 1)
        positions = place[self.wanted[place] == likely]
        self.where[positions[self.where[positions] < 0]] = source

    def of(self, hashes: Hashes) -> NDArray[np.int16]:
        """Where each of these wanted hashes was found, -1 where nowhere."""
        sources: NDArray[np.int16] = self.where[np.searchsorted(self.wanted, hashes)]
        return sources


class Examined:
    """The examples that are evaluated, and which of them the training text holds.

    An example is a list of fields, such as the two texts of a pair: no run of words goes over from one to the next.
    `answers` that are texts are looked for in runs too, but do not make the whole another one.
    """

    def __init__(self, questions: Sequence[Sequence[str]], answers: Sequence[str] | None = None) -> None:
        self.whole = words_of([" ".join(fields) for fields in questions]).whole()
        examples = (
            questions
            if answers is None
            else [[*fields, answer] for fields, answer in zip(questions, answers, strict=True)]
        )
        self.examples = examples
        self.owner = np.repeat(np.arange(len(examples)), [len(fields) for fields in examples])
        words = words_of([field for fields in examples for field in fields])
        lengths = np.bincount(self.owner, weights=np.diff(words.starts), minlength=len(examples)).astype(np.int64)
        self.run = run_length(lengths)
        self.short = lengths < self.run
        self.hashes, first = words.runs(self.run)
        """Of every run of words."""
        self.of_example = self.owner[np.searchsorted(words.starts, first, side="right") - 1]
        """The example of every run."""
        self.wholes, self.runs = Seen(np.unique(self.whole)), Seen(np.unique(self.hashes))
        self.empty = lengths == 0

    def look(self, texts: Iterable[str], source: int) -> tuple[int, int]:
        """Look for the examples in training texts. Returns how many (texts, words) there were."""
        count = read = 0
        for batch in batched(texts):
            words = words_of(batch)
            self.wholes.look(words.whole(), source)
            self.runs.look(words.runs(self.run)[0], source)
            count, read = count + len(batch), read + len(words.hashes)
        return count, read

    @property
    def exact(self) -> NDArray[np.int16]:
        """The source that holds each example as a whole (examples,), -1 where none does."""
        return np.where(self.empty, -1, self.wholes.of(self.whole)).astype(np.int16)

    @property
    def partly(self) -> NDArray[np.int16]:
        """The source that holds a run of each example (examples,), -1 where none does."""
        sources = np.full(len(self.examples), -1, dtype=np.int16)
        where = self.runs.of(self.hashes)
        seen = np.flatnonzero(where >= 0)[::-1]  # the first run of an example comes last, and stays
        sources[self.of_example[seen]] = where[seen]
        return sources

    def share(self) -> float:
        """Of all runs of all examples, the share that was found."""
        return float((self.runs.of(self.hashes) >= 0).mean()) if len(self.hashes) else 0.0

    def run_of(self, example: int) -> str:
        """The first run of an example that was found, as its words; empty where none was."""
        mine = np.flatnonzero(self.of_example == example)
        positions = mine[self.runs.of(self.hashes[mine]) >= 0]
        if not len(positions):
            return ""
        return _nth_run(self.examples[example], int(positions[0] - mine[0]), self.run)


def _nth_run(fields: Sequence[str], number: int, length: int) -> str:
    """The words of the run with that number, over all fields."""
    for text in fields:
        words = _split(text)
        count = max(0, len(words) - length + 1)
        if number < count:
            return " ".join(words[number : number + length])
        number -= count
    return ""


def _split(text: str) -> list[str]:
    """The words of a text, as `words_of` tells them apart."""
    spaced = "".join(letter if ord(letter) > 127 or letter.isalnum() else " " for letter in text.lower())
    return [word for word in spaced.split(" ") if word]


def fields_of(rows: Rows) -> list[list[str]]:
    """What is asked in each row: its texts and its options."""
    pairs, options = getattr(rows, "pairs", None), getattr(rows, "options", None)
    columns: list[Sequence[Any]] = [[[text] for text in rows.texts]]
    columns += [[[text] for text in pairs]] if pairs is not None else []
    columns += [options] if options else []
    return [[text for part in parts for text in part] for parts in zip(*columns, strict=True)]


def answers_of(rows: Rows) -> list[str] | None:
    """The answers, where they are texts."""
    labels = rows.labels
    return [str(each) for each in labels] if labels is not None and len(labels) and isinstance(labels[0], str) else None


VERSION = 1
"""Of the check: changing it makes kept answers unknown."""
SHOWN = 10
"""Examples of overlap that are kept with their texts."""
WARN = 0.05
"""Share of the examples from which on a warning is given."""
FEWEST = 10
"""Clean examples that are needed for a score of their own."""


@dataclass(frozen=True)
class Overlap:
    """What was found about the rows of one split."""

    run: int
    sources: list[dict[str, Any]]
    """Of each stage that was looked through: `stage`, `texts`, `words`."""
    exact: NDArray[np.int64]
    """Positions of the examples that stand in the training text as a whole."""
    partly: NDArray[np.int64]
    """Positions of those that share a run of words with it."""
    short: int
    """Examples shorter than a run."""
    share: float
    """Of all runs."""
    found: list[dict[str, Any]]
    """Some of them: `position`, `stage`, `exact`, `words`."""

    @property
    def seen(self) -> NDArray[np.int64]:
        """Positions of all that overlap."""
        return np.union1d(self.exact, self.partly)


def overlap_of(context: Context, model: str, rows: Rows) -> Overlap | None:
    """The overlap of `rows` with what the model of that id was trained on; None where this recipe trained nothing."""
    stages = _trained(context.recipe, model)
    if not stages or not len(rows):
        return None
    examined = Examined(fields_of(rows), answers_of(rows))
    key = _key(context, stages, examined)
    path = context.cache / f"overlap-{key}.json"
    record = _read(path)
    if record is None:
        record = _look(context, stages, examined)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    return Overlap(
        record["run"],
        record["sources"],
        np.array(record["exact"], dtype=np.int64),
        np.array(record["partly"], dtype=np.int64),
        record["short"],
        record["share"],
        record["found"],
    )


def overlap_report(
    context: Context,
    model: str,
    rows: Rows,
    score: Score | None = None,
    answers: NDArray[np.generic] | None = None,
    labels: NDArray[np.generic] | None = None,
) -> dict[str, Any] | None:
    """The check as it stands in `details.json`; None where this recipe trained nothing that could overlap.

    Training data that is no longer where it was is no reason to have no score: it is said that nothing was checked.
    """
    try:
        overlap = overlap_of(context, model, rows)
    except DataError as error:
        return {"unchecked": str(error)}
    return None if overlap is None else overlap_details(overlap, rows, score, answers, labels, unknown_of(context))


def overlap_details(
    overlap: Overlap,
    rows: Rows,
    score: Score | None,
    answers: NDArray[np.generic] | None,
    labels: NDArray[np.generic] | None,
    unknown: str | None,
) -> dict[str, Any]:
    """As it stands in `details.json`, with the scores of the examples that do not overlap."""
    fields = fields_of(rows)
    seen = overlap.seen
    clean = np.setdiff1d(np.arange(len(rows)), seen)
    scores: dict[str, float] = {}
    if score is not None and answers is not None and labels is not None and len(seen) and len(clean) >= FEWEST:
        try:
            scores = score(answers[clean], labels[clean])
        except (DataError, ValueError):  # a score that these examples do not define
            scores = {}
    return {
        "run": overlap.run,
        "examples": len(rows),
        "exact": len(overlap.exact),
        "partly": len(overlap.partly),
        "seen": len(seen),
        "share": len(seen) / len(rows),
        "run_share": overlap.share,
        "short": overlap.short,
        "sources": overlap.sources,
        **({"unknown": unknown} if unknown else {}),
        "clean": {"examples": len(clean), "scores": scores},
        "found": [
            {"index": int(rows.index[each["position"]]), "text": " | ".join(fields[each["position"]])[:400]}
            | {name: each[name] for name in ("stage", "exact", "words")}
            for each in overlap.found
        ],
    }


def overlap_warning(name: str, split: str, overlap: Mapping[str, Any]) -> str | None:
    """A sentence where more than a twentieth of the examples were seen in training."""
    if "unchecked" in overlap:
        return f"{name}: whether '{split}' overlaps with the training data could not be checked: {overlap['unchecked']}"
    if overlap["share"] <= WARN:
        return None
    stages = ", ".join(dict.fromkeys(each["stage"] for each in overlap["found"]))
    clean = ", ".join(f"{metric} {value:.3f}" for metric, value in overlap["clean"]["scores"].items())
    without = f"; without them: {clean}" if clean else ""
    return (
        f"{name}: {overlap['seen']:,} of {overlap['examples']:,} examples of '{split}' overlap with what was "
        f"trained on ({stages}): "
        f"{overlap['exact']:,} as a whole, {overlap['partly']:,} in a run of {overlap['run']} words{without}"
    )


def unknown_of(context: Context) -> str | None:
    """The checkpoint whose own training text is not known, if the recipe starts from one."""
    checkpoint = context.recipe.model.checkpoint
    return None if checkpoint is None else Path(checkpoint).name if Path(checkpoint).is_absolute() else checkpoint


def _trained(recipe: Recipe, model: str) -> list[Stage]:
    """The stages that led to the model, its own last."""
    if model == START or not any(stage.id == model.partition("/")[0] for stage in recipe.stages):
        return []
    stage = recipe.stage(model)
    before = recipe.lineage(stage) if recipe.model_of(stage) in stage.reads(recipe) else ()
    return [*(each for each in reversed([*before]) if each.trains), stage]


def _texts(stage: Stage, folder: Path | None) -> Iterator[str]:
    """Every training text of a stage: each row of a task as one, each document of a pretraining that was read."""
    subjects: Mapping[str, Any] = stage.subjects()
    if not subjects:
        yield from stage.learnt_texts(folder) or ()
    for model, subject in subjects.items():
        task = subject.resolved(model.rpartition("/")[2])
        task = AsText(task) if getattr(subject, "as_text", False) else task
        rows = task.rows("train", getattr(subject, "max_train_samples", None))
        yield from chain((" ".join(fields) for fields in fields_of(rows)), answers_of(rows) or ())


def _look(context: Context, stages: Sequence[Stage], examined: Examined) -> dict[str, Any]:
    sources = []
    for number, stage in enumerate(stages):
        context.events.emit("progress", what=f"comparing with the training text of '{stage.id}'")
        texts, words = examined.look(_texts(stage, context.stage_folders.get(stage.id)), number)
        sources.append({"stage": stage.id, "texts": texts, "words": words})
    exact, partly = examined.exact, examined.partly
    whole, part = np.flatnonzero(exact >= 0), np.flatnonzero(partly >= 0)
    first = [*whole.tolist(), *(at for at in part.tolist() if exact[at] < 0)][:SHOWN]
    shown = [
        {
            "position": at,
            "stage": stages[int(exact[at] if exact[at] >= 0 else partly[at])].id,
            "exact": bool(exact[at] >= 0),
            "words": "" if exact[at] >= 0 else examined.run_of(at),
        }
        for at in first
    ]
    return {
        "run": examined.run,
        "sources": sources,
        "exact": whole.tolist(),
        "partly": part.tolist(),
        "short": int(examined.short.sum()),
        "share": examined.share(),
        "found": shown,
    }


def _key(context: Context, stages: Sequence[Stage], examined: Examined) -> str:
    """Of the content of both sides."""
    trained = []
    for stage in stages:
        subjects = [getattr(each, "max_train_samples", None) for each in stage.subjects().values()]
        rows = [getattr(stage, "max_train_samples", None), *stage.learnt_rows(context.stage_folders.get(stage.id))]
        trained.append([stage.id, stage.content(context.recipe), rows, subjects])
    text = json.dumps([VERSION, trained], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    digest.update(examined.whole.tobytes() + examined.hashes.tobytes())
    return digest.hexdigest()[:32]


def _read(place: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    return record
