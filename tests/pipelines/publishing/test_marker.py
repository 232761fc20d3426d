"""The completion marker."""

from __future__ import annotations

import pytest

from pipelines.publishing.destinations import destination


def test_what_is_written_is_read():
    told = {"fingerprint": "f", "checksums": {"a": "1"}, "name": "é"}
    record = destination.from_bytes(destination.to_bytes(told, complete=False))
    assert record == {**told, "format": destination.FORMAT, "complete": False}


def test_completeness_is_said_by_the_writer_only():
    record = destination.from_bytes(destination.to_bytes({"complete": True, "checksums": {}}, complete=False))
    assert record is not None
    assert record["complete"] is False


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"format": "finery publication 1"}',
        b'{"format": "other", "checksums": {}}',
        b"null",
    ],
)
def test_what_is_not_ours_is_none(content):
    assert destination.from_bytes(content) is None
