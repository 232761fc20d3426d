"""The bytes of a document's tokens are the bytes of the document, whatever a tokenizer does to the text."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import DataError, ModelError
from pipelines.core.registry import TOKENIZERS
from pipelines.data.documents import read_documents, token_streams
from tests.covering import examples

TEXTS = ["The café — naïve “quotes”, 漢字!\n\nA second  paragraph, it's here.", "The quick brown fox."] * 20


@cache
def tokenizer(name: str) -> Any:
    return TOKENIZERS.load(name)().train(TEXTS, 400)


@pytest.mark.parametrize("name", list(TOKENIZERS))
@examples(20, 60)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(TEXTS), min_size=1, max_size=4)
)
def test_sizes_add_up_to_the_bytes_of_every_document(name: str, texts: list[str]):
    try:
        documents = read_documents(tokenizer(name), texts)
    except DataError:
        assert all(not tokenizer(name)(text, add_special_tokens=False)["input_ids"] for text in texts)
        return
    assert (documents.sizes >= 0).all()
    assert len(documents) == len(documents.rows)
    for number, row in enumerate(documents.rows):
        low, high = documents.starts[number : number + 2]
        assert documents.sizes[low:high].sum() == len(texts[row].encode())
        assert documents.tokens[low:high].tolist() == tokenizer(name)(texts[row], add_special_tokens=False)["input_ids"]
    left_out = set(range(len(texts))) - set(documents.rows.tolist())
    assert all(not tokenizer(name)(texts[row], add_special_tokens=False)["input_ids"] for row in left_out)


def test_what_a_tokenizer_drops_counts_with_the_token_that_stands_there():
    from pipelines.data.tokenizers.wordpiece import WordPiece

    words = WordPiece(min_frequency=1).train(["the cafe is good the cafe is good"] * 5, 80)
    documents = read_documents(words, ["The  café\nis good \n"])
    assert words.convert_ids_to_tokens(documents.tokens.tolist()) == ["the", "cafe", "is", "good"]
    # "The" 3; two spaces and "café" of which é has two bytes 2 + 5; line break and "is" 3; space, "good", space, line break 7
    assert documents.sizes.tolist() == [3, 7, 3, 7]


def test_mean_bytes_are_those_of_all_occurrences():
    from pipelines.data.tokenizers.wordpiece import WordPiece

    words = WordPiece(min_frequency=1).train(["a b a b"] * 5, 30)
    documents = read_documents(words, ["a a", "b  a"])
    mean = documents.mean_bytes(len(words))
    a, b = words.convert_tokens_to_ids(["a", "b"])
    assert mean[a] == pytest.approx((1 + 2 + 3) / 3)
    assert mean[b] == 1
    assert mean.sum() == pytest.approx(3)


def test_streams_are_the_same_tokens_with_empty_documents_kept():
    (tokens, starts), *others = token_streams(tokenizer("byte_bpe"), ["The fox.", "", "The"])
    assert not others
    first, last = (tokenizer("byte_bpe")(text, add_special_tokens=False)["input_ids"] for text in ("The fox.", "The"))
    assert tokens.tolist() == [*first, *last]
    assert starts.tolist() == [0, len(first), len(first)]
    assert tokens.dtype == np.int64


def test_no_token_and_slow_tokenizers_are_one_sentence():
    with pytest.raises(DataError, match="the 2 texts hold no token"):
        read_documents(tokenizer("wordpiece"), ["", " \n"])
    with pytest.raises(ModelError, match="bytes of tokens need a tokenizer of the tokenizers library"):
        read_documents(object(), ["a"])
