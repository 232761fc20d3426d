"""Sentences, the corpus they are kept in, the spans cut from it, and the layouts of objectives."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError, DiskFull, ModelError
from pipelines.data import tokenising
from pipelines.data.packing import Blocks
from pipelines.data.sentences import Corpus, Spans, lay_out, read_sentences
from pipelines.data.tokenising import sentence_ends
from pipelines.data.tokenizers.bpe import BPE
from pipelines.data.tokenizers.wordpiece import WordPiece
from tests import tiny


def sentences(text: str) -> list[str]:
    places = [0, *sentence_ends(text), len(text)]
    return [text[start:end].strip() for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("'Stop!' he said. \"Why?\" (No answer.) Then", ["'Stop!' he said.", '"Why?"', "(No answer.)", "Then"]),
        ("wrapped\nover lines. Next", ["wrapped\nover lines.", "Next"]),
        ("A heading\n\nA text\n \n\nAnother", ["A heading", "A text", "", "Another"]),
        ("it costs 3.50 at www.example.com today. Yes", ["it costs 3.50 at www.example.com today.", "Yes"]),
        ("so... what? yes", ["so... what? yes"]),
        ("Mr. Smith", ["Mr.", "Smith"]),
        ("No end", ["No end"]),
        ("  One.  ", ["One."]),
        ("Er sagte: »Ja.« Dann ging er… Ende.", ["Er sagte: »Ja.«", "Dann ging er…", "Ende."]),
        ("", [""]),
    ],
)
def test_known_texts(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB .!?\n'\")", max_size=60))
def test_ends_ascend_within_the_text(text: str) -> None:
    ends = sentence_ends(text)
    assert ends == sorted(set(ends))
    assert all(text[:end].strip() and text[end:].strip() for end in ends)
    assert all(text[end].isspace() for end in ends)


TEXTS = [
    "The cat sat on a mat. It looked at the dogs! Did they see it?",
    "",
    "One sentence only",
    "A heading\n\nThe dogs sat. The cat sat. A mat was there. It was wet. Nobody sat on it. So what?",
]


@pytest.fixture(scope="module", params=[WordPiece, BPE], ids=["wordpiece", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param(min_frequency=1).train(TEXTS * 3, 400)


def test_the_corpus_holds_every_token_under_its_sentence(tokenizer: Any, tmp_path: Path) -> None:
    corpus = read_sentences(tokenizer, iter(TEXTS), tmp_path, "key")
    position, sentence = 0, 0
    for document, text in enumerate(text for text in TEXTS if text):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert corpus.documents[document] == sentence
        places = [0, *sentence_ends(text), len(text)]
        for start, end in pairwise(places):
            begin, stop = corpus.sentences[sentence], corpus.sentences[sentence + 1]
            said = tokenizer.decode(corpus.tokens[begin:stop]).lower()
            assert "".join(said.split()) == "".join(text[start:end].lower().split())
            sentence += 1
        assert corpus.tokens[position : position + len(ids)].tolist() == ids
        position += len(ids)
    assert len(corpus.tokens) == corpus.sentences[-1] == position
    assert len(corpus.sentences) - 1 == corpus.documents[-1] == sentence


def test_what_is_read_is_not_tokenised_again_whatever_the_chunks(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_sentences(tokenizer, TEXTS, tmp_path / "a", "key")
    again = read_sentences(tokenizer, never(), tmp_path / "a", "key")
    assert isinstance(again.tokens, np.memmap)
    monkeypatch.setattr(tokenising, "CHUNK", 1)
    singly = read_sentences(tokenizer, TEXTS, tmp_path / "b", "key")
    for other in (again, singly):
        assert np.array_equal(first.tokens, other.tokens)
        assert np.array_equal(first.sentences, other.sentences)
        assert np.array_equal(first.documents, other.documents)
    assert len(list((tmp_path / "a").iterdir())) == 1


def never() -> Any:
    raise AssertionError("read again")
    yield


def test_a_torn_folder_is_made_again(tokenizer: Any, tmp_path: Path) -> None:
    whole = read_sentences(tokenizer, TEXTS, tmp_path, "key")
    tokens = whole.tokens.tolist()
    (folder,) = tmp_path.iterdir()
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-4])
    assert read_sentences(tokenizer, TEXTS, tmp_path, "key").tokens.tolist() == tokens


def test_bad_input_has_one_sentence(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="holds no token"):
        read_sentences(tokenizer, ["", ""], tmp_path, "empty")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="no document of two sentences"):
        Spans(read_sentences(tokenizer, ["Cat"], tmp_path, "one"), 8)

    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read_sentences(Slow(), TEXTS, tmp_path, "slow")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DiskFull, match="is full"):
        read_sentences(tokenizer, TEXTS, tmp_path, "full")
    assert not list(tmp_path.glob("*.tmp"))


def corpus_of(documents: list[list[int]]) -> Corpus:
    """A corpus with sentences of these lengths, whose tokens count upwards."""
    lengths = [length for document in documents for length in document]
    return Corpus(
        np.arange(sum(lengths), dtype=np.int32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64),
    )


def slowly(documents: list[list[int]], length: int) -> list[list[list[int]]]:
    """Spans as lists of sentences as lists of tokens."""
    spans, token, number = [], 0, 0
    for place, document in enumerate(documents):
        sentences: list[list[int]] = []
        for size in document:
            tokens = list(range(token, token + size))
            token += size
            parts = -(-size // max(length // 2, 1))
            rounded = math.ceil if number % 2 else math.floor
            cuts = [rounded(Fraction(size * part, parts)) for part in range(parts + 1)]
            sentences += [tokens[start:end] for start, end in pairwise(cuts)]
            number += 1
        backwards, of_document, span = place % 2 == 1, [], []
        for sentence in [*(sentences[::-1] if backwards else sentences), None]:
            if sentence is None or sum(map(len, span)) + len(sentence) > length:
                if len(span) > 1:
                    of_document.append(span[::-1] if backwards else span)
                span = []
            if sentence is not None:
                span.append(sentence)
        spans += of_document[::-1] if backwards else of_document
    return spans


documents_strategy = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents_strategy, st.integers(2, 24))
def test_spans_are_those_of_the_slow_reader(documents: list[list[int]], length: int) -> None:
    expected = slowly(documents, length)
    if not expected:
        with pytest.raises(DataError, match="two sentences"):
            Spans(corpus_of(documents), length)
        return
    spans = Spans(corpus_of(documents), length)
    assert len(spans) == len(expected)
    assert spans.tokens == sum(len(sentence) for span in expected for sentence in span)
    for number, sentences in enumerate(expected):
        example = spans[number]
        assert example["input_ids"].tolist() == [token for sentence in sentences for token in sentence]
        assert np.diff(example["sentences"]).tolist() == [len(sentence) for sentence in sentences]
        assert example["sentences"][0] == 0


def test_the_text_goes_on_to_the_end_of_a_sentence_within_the_document() -> None:
    spans = Spans(corpus_of([[3, 4, 5, 2], [6, 1], [2, 2]]), 12)
    assert [spans[number]["input_ids"].tolist() for number in range(len(spans))] == [
        list(range(12)),
        list(range(14, 21)),
        list(range(21, 25)),
    ]
    assert [spans.others(number) for number in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert spans.onward(0, 1, 9).tolist() == list(range(3, 12))
    assert spans.onward(0, 1, 8).tolist() == list(range(3, 7))
    assert spans.onward(0, 2, 100).tolist() == list(range(7, 14))  # not into the next document
    assert spans.onward(1, 0, 4).tolist() == list(range(14, 18))  # no sentence fits: cut


def test_documents_without_a_span_are_skipped() -> None:
    spans = Spans(corpus_of([[1], [2, 2], [2], [1, 1, 1, 2], [1]]), 4)
    assert len(spans) == 2
    assert [spans.others(number) for number in range(2)] == [(0, 1), (1, 2)]
    assert spans[1]["input_ids"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(("layout", "added"), [("blocks", 2), ("stream", 0)])
def test_pieces_have_the_asked_length_and_their_ends(layout: str, added: int, tmp_path: Path) -> None:
    rows = lay_out(layout, tiny.tokenizer(), tiny.TEXTS, 10, tmp_path, "key")
    assert isinstance(rows, Blocks)
    assert len(rows) > 5
    ends = (tiny.tokenizer().cls_token_id, tiny.tokenizer().sep_token_id)
    for number in range(len(rows)):
        ids = rows[number]["input_ids"].tolist()
        assert len(ids) == 10 + added
        assert ((ids[0], ids[-1]) == ends) == (layout == "blocks")


def test_spans_have_at_most_the_asked_length(tmp_path: Path) -> None:
    texts = [". ".join(word.capitalize() for word in text.split()) for text in tiny.TEXTS]
    rows = lay_out("sentences", tiny.tokenizer(), texts, 10, tmp_path, "key")
    assert isinstance(rows, Spans)
    assert 2 <= max(len(rows[number]["input_ids"]) for number in range(len(rows))) <= 10
    again = lay_out("sentences", tiny.tokenizer(), iter(()), 6, tmp_path, "key")  # one corpus for every length
    assert max(len(again[number]["input_ids"]) for number in range(len(again))) <= 6
