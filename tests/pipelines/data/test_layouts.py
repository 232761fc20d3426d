"""Each layout gives examples of the asked number of tokens of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.data.packing import Blocks
from pipelines.data.sentences import Spans, lay_out
from tests import tiny


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
