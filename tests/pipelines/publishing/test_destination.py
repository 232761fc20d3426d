"""`to` picks its kind by its syntax."""

from __future__ import annotations

import pytest

from pipelines.publishing.destinations.destination import destination_of


@pytest.mark.parametrize(
    ("to", "kind", "location", "load_from"),
    [
        ("/srv/models/x", "Folder", "/srv/models/x", "/srv/models/x"),
        ("s3://bucket/deep/x/", "Url", "s3://bucket/deep/x", "x"),
        ("hub:ada/x", "Hub", "hub:ada/x", "ada/x"),
    ],
)
def test_kind_location_and_what_a_reader_types(to, kind, location, load_from):
    destination = destination_of(to)
    assert type(destination).__name__ == kind
    assert destination.location == location
    assert destination.load_from() == load_from


def test_a_relative_folder_is_relative_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    destination = destination_of("registry/x")
    assert destination.location == str(tmp_path / "registry/x")
    monkeypatch.chdir("/")
    assert destination.location == str(tmp_path / "registry/x")
    assert destination.load_from() == "registry/x"
