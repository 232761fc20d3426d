"""Vectors of words: a table that is trained on text or read from a file, and the mean of a text's words.

A word is a run of letters and digits, or one other sign, in lower case unless told otherwise. A text is the mean of
its known words' vectors; how many of its words are unknown is counted. Whoever trains a table writes it into the
cache under a name made of everything that it depends on, so that tasks share it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from pipelines.core.config import ConfigIssues, server_reference
from pipelines.core.errors import DataError, Stopped
from pipelines.core.files import made_once, whole_file
from pipelines.data.references import DatasetReference
from pipelines.evaluation.features.base import Features, Reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipelines.core.interfaces import Context

    Vectors = NDArray[np.float32]

WORD = re.compile(r"\w+|[^\w\s]")
LONGEST = 10_000
"""Words of a training sequence: gensim reads no longer ones. Longer documents are several sequences."""
LONGEST_LINE = 1 << 20
"""Bytes of a line in a file of vectors."""


def words_of(text: str, lowercase: bool = True) -> list[str]:
    """The words of a text."""
    return WORD.findall(text.lower() if lowercase else text)


def _file(value: str | None, info: ValidationInfo) -> str | None:
    """The path of a file beside the recipe."""
    if value is None:
        return None
    place = Path((info.context or {}).get("folder", Path.cwd())) / Path(value).expanduser()
    if not place.is_file():
        raise ValueError(server_reference(value, "file") or f"'{value}' is no file; looked for {place}")
    return str(place.resolve())


class StaticVectors(Features):
    """Base of the vectors that a word has wherever it stands."""

    datasets: tuple[DatasetReference, ...] | None = Field(None, min_length=1)
    """Text to train the vectors on, without labels."""
    vectors: Annotated[str | None, AfterValidator(_file)] = Field(None, validate_default=False)
    """A file of vectors to read instead: a line a word, as word2vec's text format (with a first line of counts) and
    GloVe's have it."""
    lowercase: bool = True
    """Whether words are compared in lower case."""
    size: int = Field(100, ge=1, le=4096)
    """Numbers of each vector."""
    window: int = Field(5, ge=1, le=1000)
    """Words to either side that count as a word's neighbours."""
    min_count: int = Field(5, ge=1)
    """Words that the text holds less often are unknown."""
    max_vocab_size: int = Field(200_000, ge=1)
    """Of more words the most frequent are kept."""
    epochs: int = Field(5, ge=1)
    """How often the text, or its counts, are gone through."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of each data set."""

    @model_validator(mode="after")
    def _one_of_both(self) -> StaticVectors:
        if (self.datasets is None) == (self.vectors is None):
            given = "both were given" if self.vectors else "neither was given"
            raise ConfigIssues([((), f"needs either 'datasets' to train on or 'vectors', a file; {given}")])
        if self.vectors is not None:
            own = [key for key in self.model_fields_set if key not in ("name", "vectors", "lowercase")]
            problem = "is about training, and the vectors are read from a file; leave it out"
            if own:
                raise ConfigIssues([((key,), problem) for key in sorted(own)])
        return self

    def content(self) -> dict[str, str]:
        hashes = {f"features.{at}.{each.text}": each.content() for at, each in enumerate(self.datasets or ())}
        return hashes if self.vectors is None else {"features.vectors": _hash_of(Path(self.vectors))}

    def texts(self) -> Iterator[str]:
        """Each document; one that repeats the document before it is read once."""
        before = None
        for text in chain.from_iterable(each.texts(self.max_train_samples) for each in self.datasets or ()):
            if text != before:
                yield text
            before = text

    def train(self, corpus: CorpusFile, context: Context) -> WordVectors:
        """The vectors of the words of a corpus."""
        raise NotImplementedError

    def open(self, reading: Reading, needed: Iterable[str]) -> WordMeans:
        """The trained table, from the cache where it lies there; of a file the words that are `needed`."""
        table = self._read(needed) if self.vectors is not None else self._trained(reading.context)
        return WordMeans(table, self.lowercase, reading)

    def _read(self, needed: Iterable[str]) -> WordVectors:
        wanted = {word for text in needed for word in words_of(text, self.lowercase)}
        with open(str(self.vectors), "rb") as file:
            return read_vectors(file, wanted, Path(str(self.vectors)).name)

    def _trained(self, context: Context) -> WordVectors:
        path = context.cache / f"vectors-{self._key(context.seed)}.npz"

        def make() -> None:
            with tempfile.TemporaryDirectory(prefix="corpus-", dir=context.cache) as folder:
                corpus = written(Path(folder) / "corpus.txt", self, context)
                save_table(path, self.train(corpus, context))

        return made_once(path, partial(load_table, path), make)

    def _key(self, seed: int) -> str:
        """Everything that the vectors depend on, the code that makes them included."""
        code = [inspect.getsource(sys.modules[name]) for name in (__name__, type(self).__module__)]
        whole = json.dumps([self.plain(), seed, self.content(), code], sort_keys=True, default=str)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class CorpusFile:
    """Text as a file of words, a sequence a line, and the words that are learnt."""

    path: Path
    counts: Mapping[str, int]
    """How often each known word stands in the text, the most frequent first; equal ones by their letters."""
    words: int
    """All words, unknown ones among them."""

    def sequences(self) -> Iterator[list[str]]:
        """The words of each line."""
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                yield line.split()


def written(path: Path, block: StaticVectors, context: Context) -> CorpusFile:
    """Cut the text of a block into words, once. Raises DataError where too few are left to learn from, Stopped."""
    counts: Counter[str] = Counter()
    context.events.emit("progress", what="cutting text into words")
    with open(path, "w", encoding="utf-8") as out:
        for number, text in enumerate(block.texts()):
            words = words_of(text, block.lowercase)
            counts.update(words)
            for start in range(0, len(words), LONGEST):
                out.write(" ".join(words[start : start + LONGEST]) + "\n")
            if number % 1000 == 0:
                pause(context)
    frequent = sorted(
        (item for item in counts.items() if item[1] >= block.min_count), key=lambda item: (-item[1], item[0])
    )
    kept = dict(frequent[: block.max_vocab_size])
    if len(kept) < 2:
        raise DataError(
            f"the text holds {len(kept)} words that stand in it {block.min_count} times or more, too few to learn "
            "vectors; give more text or a smaller features.min_count"
        )
    return CorpusFile(path, kept, counts.total())


def pause(context: Context) -> None:
    """A sign of life, and the place to stop at when asked to. Raises Stopped."""
    context.beat()
    if context.stop.requested:
        raise Stopped("stopped while word vectors were trained; they begin anew")


@dataclass(frozen=True)
class WordVectors:
    """A table of vectors."""

    words: Sequence[str]
    matrix: Vectors
    """(words, size)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, for the details."""


class WordMeans:
    """The mean of each text's known words, and the count of those unknown."""

    def __init__(self, table: WordVectors, lowercase: bool, reading: Reading) -> None:
        self.table = table
        self.lowercase = lowercase
        self.reading = reading
        self.rows = {word: row for row, word in enumerate(table.words)}
        self.unknown: dict[str, list[int]] = {}
        """By part of the data: (unknown words, words)."""

    def vectors(self, name: str, texts: Sequence[str]) -> Vectors:
        """(1, texts, size): zeros where a text has no known word."""
        import numpy as np
        from scipy import sparse

        from pipelines.core.interfaces import Rows
        from pipelines.data.encoding import read_part

        tokenizer = self.reading.context.open_tokenizer()
        cut = read_part(tokenizer, Rows(texts, None, None, range(len(texts))), self.reading.max_length).texts
        ids = [np.fromiter(map(self.rows.get, words, repeat(-1)), dtype=np.int64) for words in self._words(cut)]
        every = np.concatenate([*ids, np.empty(0, dtype=np.int64)])
        text = np.repeat(np.arange(len(texts)), [len(each) for each in ids])
        known = every >= 0
        count = self.unknown.setdefault(name, [0, 0])
        count[0] += int((~known).sum())
        count[1] += len(every)
        shape = (len(texts), len(self.table.words))
        counts = sparse.csr_matrix((np.ones(int(known.sum()), np.float32), (text[known], every[known])), shape=shape)
        lengths = np.maximum(np.asarray(counts.sum(axis=1)), 1.0)
        means: Vectors = ((counts @ self.table.matrix) / lengths).astype(np.float32)[None]
        return means

    def _words(self, texts: Sequence[str]) -> Iterator[list[str]]:
        return (words_of(text, self.lowercase) for text in texts)

    def details(self) -> dict[str, Any]:
        """The table, and the share of the words that it does not know, by part of the data."""
        shares = {name: unknown / max(1, total) for name, (unknown, total) in self.unknown.items()}
        return {"vocabulary": len(self.table.words), **self.table.facts, "unknown_words": shares}


# ---- files ---------------------------------------------------------------------------------------------------------


def save_table(path: Path, table: WordVectors) -> None:
    """Write a table whole or not at all."""
    import numpy as np

    with whole_file(path) as temporary, open(temporary, "wb") as file:
        words = np.frombuffer("\n".join(table.words).encode(), dtype=np.uint8)
        facts = np.frombuffer(json.dumps(dict(table.facts)).encode(), dtype=np.uint8)
        np.savez(file, words=words, matrix=table.matrix, facts=facts)


def load_table(path: Path) -> WordVectors | None:
    """The table in a file that `save_table` wrote; None where there is none that can be read."""
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            words = kept["words"].tobytes().decode().split("\n")
            table = WordVectors(words, kept["matrix"], json.loads(kept["facts"].tobytes()))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return table if len(words) == len(table.matrix) else None


def read_vectors(file: IO[bytes], wanted: set[str], name: str) -> WordVectors:
    """The vectors of the wanted words, from word2vec's text format or GloVe's. Raises DataError.

    A line is a word and its numbers, with spaces between; a first line of two whole numbers is word2vec's. Words may
    hold spaces themselves. Of a word that stands there twice the first vector is taken.
    """
    import numpy as np

    size = 0
    vectors: dict[str, Vectors] = {}
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
        parts = line.decode("utf-8", errors="replace").rstrip().split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            size = int(parts[1])
            continue
        size = size or len(parts) - 1
        if size < 1 or len(parts) <= size:
            problem = f"has {max(0, len(parts) - 1)} numbers, must have {max(1, size)}"
            raise DataError(f"{name}, line {number}, {problem}: a word and its vector, with spaces between")
        word = " ".join(parts[:-size])
        if word not in wanted or word in vectors:
            continue
        try:
            vectors[word] = np.array(parts[-size:], dtype=np.float32)
        except ValueError:
            raise DataError(
                f"{name}, line {number}, holds something that is no number in the vector of '{word}'"
            ) from None
        if not np.isfinite(vectors[word]).all():
            raise DataError(f"{name}, line {number}, holds a number that is not finite in the vector of '{word}'")
    if not vectors:
        raise DataError(
            f"{name} has a vector for none of the {len(wanted):,} words of the task; is it in its language?"
        )
    return WordVectors(list(vectors), np.stack(list(vectors.values())), {"file": name, "size": size})
