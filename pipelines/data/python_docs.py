"""English text and labelled tasks made from the documentation that every CPython carries.

Nothing is downloaded: the documents are the reference topics behind ``help()`` (``pydoc_data.topics``) and the
docstrings of the standard library, read from its source files with :mod:`ast`, without importing them. One in eight
documents is held out; neither its text nor its sentences occur in the training split. The rows depend on the running
Python only: the same interpreter and library give the same rows in the same order, while another version of Python has
other documentation. Only the standard library is used.

- `labelled`: are the words of a sentence in their original order? Each sentence occurs twice, once as it was written
  and once with the words between the first and the last shuffled. Both versions hold the same words, so whoever only
  counts words is right half of the time, by construction; the answer has to come from knowing how English puts words
  together, which is what pretraining on plain text teaches. It is the probing task "bigram shift" (two neighbouring
  words swapped) of Conneau et al. (2018), "What you can cram into a single $&!#* vector",
  https://arxiv.org/abs/1805.01070, made easier.
- `words`: in each sentence a run of three to five words is turned round; which words are they? (tags in IOB2)
- `questions`: which words follow these in a paragraph? (a span of the paragraph)
- `endings`: which of four endings belongs to this beginning of a sentence? As SWAG asks (Zellers et al. 2018,
  arxiv.org/abs/1808.05326), but the wrong ones are endings of other sentences.
- `preferences`: which of two continuations of a sentence is the better one? The other has the same words in another
  order.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypedDict

Split = Literal["train", "validation"]

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""What may have a docstring."""

SPLITS: tuple[Split, ...] = ("train", "validation")
LABELS = ("shuffled", "original")
"""Names of the labels: row["label"] is an index into them."""

_SEED = 20
_HELD_OUT_PERCENT = 12
_SENTENCE_WORDS = range(6, 26)
_SKIPPED_MODULES = frozenset({"antigravity", "pydoc_data", "this"})  # jokes, and the topics' own source
_SKIPPED_FOLDERS = frozenset({"__pycache__", "idle_test", "site-packages", "test", "tests"})

_BLANK_LINE = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"(?:[*•-]|\d+\.)\s+")
_EMPHASIS = re.compile(r"\*\*?([^*\s][^*]*)\*\*?")
_NOT_PROSE = (">>>", "...", "+--", "|", "$", "%")
_QUOTES = str.maketrans("", "", '"`“”')
_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PARAGRAPH_WORD = re.compile(r"[(\[]?[A-Za-z][a-z'’-]*[.,;:!?)\]]*")
_SENTENCE_WORD = re.compile(r"[A-Za-z][a-z'’-]*[.,;:!?]?")


@dataclass(frozen=True, slots=True)
class Document:
    """The documentation of one module (``json.decoder``) or of one topic (``topic:lambda``)."""

    source: str
    text: str


class TextRow(TypedDict):
    """A paragraph of prose."""

    text: str
    source: str


class LabelledRow(TypedDict):
    """A sentence, and whether its words are in their original order."""

    text: str
    label: int
    source: str


def documents() -> list[Document]:
    """Every topic and every documented module of the running Python, in a stable order."""
    return [*_topics(), *_modules()]


def text_rows(split: Split) -> list[TextRow]:
    """The paragraphs of prose of one split, each once; code, tables and option lists are left out."""
    return [{"text": text, "source": source} for source, text in _paragraphs()[split]]


def labelled_rows(split: Split) -> list[LabelledRow]:
    """The labelled sentences of one split: pairs of an original and its shuffled version, the pairs in random order.

    The two versions of a sentence are neighbours, so the first N rows are as balanced as all of them.
    """
    return [row.copy() for row in _labelled(split)]


@cache
def _labelled(split: Split) -> tuple[LabelledRow, ...]:
    generator = random.Random(f"{_SEED} {split}")
    sentences = list(_sentences(split).items())
    generator.shuffle(sentences)
    rows: list[LabelledRow] = []
    for sentence, source in sentences:
        shuffled = _shuffled(sentence, generator)
        if shuffled is None:
            continue
        pair: list[LabelledRow] = [
            {"text": shuffled, "label": LABELS.index("shuffled"), "source": source},
            {"text": sentence, "label": LABELS.index("original"), "source": source},
        ]
        generator.shuffle(pair)
        rows.extend(pair)
    return tuple(rows)


def sentences_of(split: Split) -> list[str]:
    """The plain sentences of one split, each once, in a stable order."""
    return list(_sentences(split))


def _topics() -> Iterator[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions package pydoc apart
        return
    for name in sorted(topics):
        yield Document(f"topic:{name}", inspect.cleandoc(topics[name]))


def _modules() -> Iterator[Document]:
    library = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names - _SKIPPED_MODULES):
        for path in _source_files(library, name):
            parts = path.relative_to(library).with_suffix("").parts
            text = "\n\n".join(_docstrings(path))
            if text:
                yield Document(".".join(parts).removesuffix(".__init__"), text)


def _source_files(library: Path, name: str) -> list[Path]:
    module = library / f"{name}.py"
    if module.is_file():
        return [module]
    paths = (library / name).rglob("*.py")
    return sorted(path for path in paths if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(library).parts))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # a distribution's patched or unreadable file is not worth a failure
        return
    waiting: deque[ast.AST] = deque([tree])
    while waiting:  # in the order of `ast.walk`, without expressions: they are most of a tree, and hold no docstring
        node = waiting.popleft()
        if isinstance(node, DOCUMENTED):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, block, ()))


@cache
def _paragraphs() -> dict[Split, list[tuple[str, str]]]:
    """Per split, (source, paragraph); a paragraph that several documents share stays with the first of them."""
    paragraphs: dict[Split, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for document in documents():
        for paragraph in _prose(document.text):
            if paragraph not in seen:
                seen.add(paragraph)
                paragraphs[_split_of(document.source)].append((document.source, paragraph))
    return paragraphs


def _split_of(source: str) -> Split:
    """By the hash of a topic's or top-level package's name: no package is divided, and ``_pydecimal`` goes with
    ``decimal``."""
    name = source if source.startswith("topic:") else source.partition(".")[0].removeprefix("_").removeprefix("py")
    return "validation" if int(sha256(name.encode()).hexdigest(), 16) % 100 < _HELD_OUT_PERCENT else "train"


def _prose(text: str) -> Iterator[str]:
    for block in _BLANK_LINE.split(text):
        lines = block.splitlines()
        if any(line.lstrip().startswith(_NOT_PROSE) for line in lines):
            continue
        paragraph = " ".join(block.split())
        paragraph = _BULLET.sub("", _EMPHASIS.sub(r"\1", paragraph).translate(_QUOTES), count=1)
        words = paragraph.split()
        if len(words) >= 5 and _share(_PARAGRAPH_WORD, words) >= 0.7:
            yield paragraph


@cache
def _sentences(split: Split) -> dict[str, str]:
    """Sentence to source. A validation sentence that also stands in a training document is dropped."""
    source_of: dict[str, str] = {}
    keys = set() if split == "train" else {_key(sentence) for sentence in _sentences("train")}
    for source, paragraph in _paragraphs()[split]:
        for sentence in _SENTENCE_BREAK.split(paragraph):
            key = _key(sentence)
            if key not in keys and _is_plain(sentence):
                keys.add(key)
                source_of[sentence] = source
    return source_of


def _key(sentence: str) -> str:
    """What makes two sentences the same: their letters, not their case or punctuation."""
    return " ".join(re.findall(r"[a-z]+", sentence.lower()))


def _is_plain(sentence: str) -> bool:
    words = sentence.split()
    if len(words) not in _SENTENCE_WORDS or not sentence[0].isupper() or not sentence.endswith((".", "!", "?")):
        return False
    return _share(_SENTENCE_WORD, words) >= 0.85


def _share(pattern: re.Pattern[str], words: list[str]) -> float:
    return sum(pattern.fullmatch(word) is not None for word in words) / len(words)


def _shuffled(sentence: str, generator: random.Random) -> str | None:
    """The sentence with the words between its first and last in another order; None if there is no other order."""
    first, *inner, last = sentence.split()
    if len({word.lower() for word in inner}) < 2:
        return None
    mixed = inner.copy()
    while mixed == inner:
        generator.shuffle(mixed)
    return " ".join((first, *mixed, last))


SEED = 21
RUN = (3, 5)
"""Words of a turned run."""
ANSWER = (1, 4)
"""Words of an answer."""
ASKED = 4
"""Words that a question shows."""
ENDINGS = 4


def word_rows(split: Split) -> list[dict[str, Any]]:
    """`{tokens, tags}`: sentences with a run of words in reverse order, `B-TURNED I-TURNED …`, and `O` elsewhere."""
    generator = random.Random(f"{SEED} words {split}")
    rows = []
    for sentence in _shuffled_sentences(split, generator):
        words = sentence.split()
        count = generator.randint(*RUN)
        begin = generator.randint(1, max(1, len(words) - count - 1))
        turned = words[begin : begin + count][::-1]
        if turned == turned[::-1]:
            continue
        tags = ["O"] * begin + ["B-TURNED", *["I-TURNED"] * (len(turned) - 1)]
        tokens = [*words[:begin], *turned, *words[begin + count :]]
        rows.append({"tokens": tokens, "tags": tags + ["O"] * (len(tokens) - len(tags))})
    return rows


def question_rows(split: Split) -> list[dict[str, Any]]:
    """`{id, question, context, answers}`: some neighbouring words of a paragraph, and those that follow them there."""
    generator = random.Random(f"{SEED} questions {split}")
    rows = []
    for number, paragraph in enumerate(text_rows(split)):
        context = paragraph["text"]
        words = context.split(" ")
        count = generator.randint(*ANSWER)
        if len(words) < ASKED + count:
            continue
        begin = generator.randint(0, len(words) - ASKED - count)
        quote = " ".join(words[begin : begin + ASKED])
        if context.count(quote) != 1:  # what follows it must be one thing
            continue
        answer = " ".join(words[begin + ASKED : begin + ASKED + count])
        start = len(" ".join(words[: begin + ASKED])) + 1
        rows.append(
            {
                "id": f"{split}-{number}",
                "question": f"What follows {quote}?",
                "context": context,
                "answers": {"text": [answer], "answer_start": [start]},
            }
        )
    generator.shuffle(rows)
    return rows


def ending_rows(split: Split) -> list[dict[str, Any]]:
    """`{question, options, answer}`: a sentence's beginning, four endings, and the letter of its own."""
    generator = random.Random(f"{SEED} endings {split}")
    halves = []
    for sentence in _shuffled_sentences(split, generator):
        words = sentence.split()
        middle = len(words) // 2
        halves.append((" ".join(words[:middle]), " ".join(words[middle:])))
    rows = []
    for beginning, ending in halves:
        others = [other for _, other in generator.sample(halves, min(len(halves), 3 * ENDINGS)) if other != ending]
        options = [ending, *list(dict.fromkeys(others))[: ENDINGS - 1]]
        if len(options) < ENDINGS:
            continue
        generator.shuffle(options)
        rows.append({"question": beginning, "options": options, "answer": "ABCD"[options.index(ending)]})
    return rows


def preference_rows(split: Split) -> list[dict[str, Any]]:
    """`{prompt, chosen, rejected}`: a sentence's beginning, the rest of it, and the rest with its words in another
    order."""
    generator = random.Random(f"{SEED} preferences {split}")
    rows = []
    for sentence in _shuffled_sentences(split, generator):
        words = sentence.split()
        middle = len(words) // 2
        rest = words[middle:]
        mixed = generator.sample(rest, len(rest))
        if mixed == rest:
            continue
        rows.append(
            {"prompt": " ".join(words[:middle]), "chosen": f" {' '.join(rest)}", "rejected": f" {' '.join(mixed)}"}
        )
    return rows


def _shuffled_sentences(split: Split, generator: random.Random) -> list[str]:
    sentences = list(sentences_of(split))
    generator.shuffle(sentences)
    return sentences


ROWS: dict[str, Callable[[Split], list[dict[str, Any]]]] = {
    "words": word_rows,
    "questions": question_rows,
    "endings": ending_rows,
    "preferences": preference_rows,
}
"""By configuration of the embedded data set."""
