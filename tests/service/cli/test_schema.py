"""`finery schema` is made once for the code that it describes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipelines.core import recipe
from service.cli import schema


def test_the_second_time_it_is_read_and_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = schema.schema()
    assert json.loads(text) == recipe.schema()
    monkeypatch.setattr(recipe, "schema", lambda: pytest.fail("it was made again"))
    assert schema.schema() == text


def test_changed_code_has_another_one_and_the_older_is_gone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "schema", lambda: {"title": "older"})
    schema.schema()
    file = Path(recipe.__file__)
    status, before = file.stat(), schema.code()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    try:
        assert schema.code() != before
        monkeypatch.setattr(recipe, "schema", lambda: {"title": "newer"})
        assert json.loads(schema.schema()) == {"title": "newer"}
        assert len(list((home / "schema").iterdir())) == 1
    finally:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_it_is_printed_where_it_cannot_be_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "schema").write_text("in the way")
    monkeypatch.setattr(recipe, "schema", lambda: {"title": "this"})
    assert json.loads(schema.schema()) == {"title": "this"}
