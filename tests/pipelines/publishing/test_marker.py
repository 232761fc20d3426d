"""The completion marker."""

from __future__ import annotations

import pytest

from pipelines.publishing import marker


def test_what_is_written_is_read():
    told = {"fingerprint": "f", "checksums": {"a": "1"}, "name": "é"}
    record = marker.from_bytes(marker.to_bytes(told, complete=False))
    assert record == {**told, "format": marker.FORMAT, "complete": False}


def test_completeness_is_said_by_the_writer_only():
    record = marker.from_bytes(marker.to_bytes({"complete": True, "checksums": {}}, complete=False))
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
    assert marker.from_bytes(content) is None
