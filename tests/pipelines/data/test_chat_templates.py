from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from pipelines.data.chat_templates import DEFAULT, MARKS, TEMPLATES, TemplateName, adopt, content_of, marks_of, text_of

FIELD = TypeAdapter(TemplateName)


def checked(value, folder):
    return FIELD.validate_python(value, context={"folder": folder})


def test_a_name_stays_and_a_file_becomes_absolute(tmp_path):
    (tmp_path / "mine.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert checked("chatml", tmp_path) == "chatml"
    assert checked("mine.jinja", tmp_path) == str(tmp_path / "mine.jinja")
    assert text_of(checked("mine.jinja", tmp_path)).startswith("{% for m")


def test_what_is_neither_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ValidationError, match=r"'chatlm' is no known template. Did you mean 'chatml'.*looked for"):
        checked("chatlm", tmp_path)
    (tmp_path / "bytes.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValidationError, match="is not UTF-8 text"):
        checked("bytes.jinja", tmp_path)


def test_adopting_asks_the_recipe_then_the_tokenizer_then_the_models_training():
    assert adopt(SimpleNamespace(chat_template="own"), "zephyr", "inherited") == "zephyr"
    tokenizer = SimpleNamespace(chat_template="own")
    assert (adopt(tokenizer, None, "inherited"), tokenizer.chat_template) == ("the tokenizer's own", "own")
    tokenizer = SimpleNamespace(chat_template=None)
    assert (adopt(tokenizer, None, TEMPLATES["alpaca"]), tokenizer.chat_template) == ("alpaca", TEMPLATES["alpaca"])
    assert adopt(SimpleNamespace(chat_template=None), None) == DEFAULT
    tokenizer = SimpleNamespace(chat_template={"tool_use": "tools", "default": "plain"})
    adopt(tokenizer, None)
    assert tokenizer.chat_template == "plain"


def test_a_hash_changes_with_the_file(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("a")
    before = content_of(str(file))
    file.write_text("b")
    assert content_of(str(file)) != before


def test_marks_stand_in_their_templates():
    assert set(MARKS) <= set(TEMPLATES)
    assert all(mark in TEMPLATES["chatml"] for mark in marks_of("chatml"))
    assert marks_of(None) == marks_of("simple") == ()
