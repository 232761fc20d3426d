"""A name for prepared data changes with everything that changes the data."""

from __future__ import annotations

from pipelines.data.packing import prepared_key
from pipelines.data.tokenizers.wordpiece import WordPiece
from tests import tiny


def test_the_name_changes_with_tokenizer_content_and_shape_and_with_nothing_else() -> None:
    content = {"a": "1", "b": "2"}
    name = prepared_key(tiny.tokenizer(), content, 128, None)
    assert prepared_key(WordPiece().train(tiny.TEXTS, 120), {"b": "2", "a": "1"}, 128, None) == name
    others = {
        prepared_key(WordPiece().train(tiny.TEXTS, 60), content, 128, None),
        prepared_key(tiny.tokenizer(), content | {"b": "3"}, 128, None),
        prepared_key(tiny.tokenizer(), {"a": "1"}, 128, None),
        prepared_key(tiny.tokenizer(), content, 64, None),
        prepared_key(tiny.tokenizer(), content, 128, 10),
    }
    assert len(others) == 5
    assert name not in others
    assert name.isalnum()
