"""What every destination must do, whatever it is: the same tests run for each name in the registry."""

from __future__ import annotations

import importlib.util
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import PublishError
from pipelines.core.registry import DESTINATIONS
from pipelines.publishing.destinations.destination import destination_of, kind_of, write_sums


def _stand_in() -> Any:
    """tests/hub_stand_in.py, which no package holds."""
    name = "hub_stand_in"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Place:
    """One destination, and a way to look at and to damage what lies there: by the Hub's stand-in, or by its path or URL."""

    def __init__(self, kind: str, hub: Any) -> None:
        import fsspec

        example = re.sub(r"^\w+://", "memory://", DESTINATIONS.load(kind).example)  # no address outside this machine
        self.to = f"{example}-{uuid.uuid4().hex[:8]}"
        location = destination_of(self.to).location
        self.repository = location.removeprefix("hub:") if location.startswith("hub:") else None
        self.hub = hub
        if self.repository is None:
            self.files, self.root = fsspec.url_to_fs(location)

    def write(self, name: str, content: bytes) -> None:
        if self.repository is not None:
            repository = self.hub.repositories.setdefault(self.repository, _stand_in().Repository(private=True))
            repository.files[name] = content
            repository.large.discard(name)
        else:
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(f"{self.root}/{name}", content)

    def names(self) -> set[str]:
        if self.repository is not None:
            return set(self.hub.repositories[self.repository].files) - {".gitattributes"}
        return {path.removeprefix(self.root.rstrip("/") + "/") for path in self.files.find(self.root)}

    def delete(self, name: str) -> None:
        if self.repository is not None:
            del self.hub.repositories[self.repository].files[name]
        else:
            self.files.rm_file(f"{self.root}/{name}")


@pytest.fixture(params=sorted(DESTINATIONS))
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = _stand_in()
    with module.serving() as hub:
        module.connect(hub, monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield Place(request.param, hub)


def publication(folder: Path, fingerprint: str = "f" * 32, **files: str) -> dict[str, Any]:
    for name, text in {
        "README.md": "---\nlicense: mit\n---\n",
        "model.safetensors": "weights",
        "base/config.json": "{}",
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"name": "test", "fingerprint": fingerprint, "checksums": write_sums(folder)}


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_its_example_is_written_in_its_own_syntax(kind):
    assert kind_of(DESTINATIONS.load(kind).example) is DESTINATIONS.load(kind)
    assert DESTINATIONS.load(kind).mistake(DESTINATIONS.load(kind).example) is None


@pytest.mark.parametrize(
    "to",
    ["registry/demo", "/srv/models/x", "s3://bucket/x", "file:///x/y", "memory://x", "hub:a/b", "hub:", "://", "a:b"],
)
def test_some_kind_claims_any_text(to):
    assert kind_of(to) in [DESTINATIONS.load(name) for name in DESTINATIONS]


def test_what_is_pushed_is_there_and_marked_complete(place, tmp_path):
    told = publication(tmp_path / "new")
    destination = destination_of(place.to)
    assert destination.marker() is None
    assert destination.push(tmp_path / "new", told) == destination.location
    assert place.names() == {*told["checksums"], "publication.json"}
    assert destination.holds(told["checksums"])
    marker = destination.marker()
    assert marker is not None
    assert (marker["complete"], marker["fingerprint"], marker["checksums"]) == (True, "f" * 32, told["checksums"])


@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "base/config.json"])
def test_a_changed_or_missing_file_is_noticed(place, tmp_path, name):
    told = publication(tmp_path / "new")
    destination = destination_of(place.to)
    destination.push(tmp_path / "new", told)
    place.write(name, b"changed")
    assert not destination_of(place.to).holds(told["checksums"])
    place.delete(name)
    assert not destination_of(place.to).holds(told["checksums"])
    destination.push(tmp_path / "new", told)
    assert destination_of(place.to).holds(told["checksums"])


def test_a_newer_publication_replaces_the_older_one_and_its_extra_files(place, tmp_path):
    destination_of(place.to).push(
        tmp_path / "old", publication(tmp_path / "old", "a" * 32, **{"old.txt": "old", "base/old.txt": "old"})
    )
    told = publication(tmp_path / "new", "b" * 32, **{"new.txt": "new"})
    destination_of(place.to).push(tmp_path / "new", told)
    assert place.names() == {*told["checksums"], "publication.json"}
    marker = destination_of(place.to).marker()
    assert marker is not None
    assert marker["fingerprint"] == "b" * 32


def test_files_of_somebody_else_are_refused_and_left_alone(place, tmp_path):
    place.write("thesis.txt", b"years of work")
    told = publication(tmp_path / "new")
    with pytest.raises(PublishError, match="no Finery publication"):
        destination_of(place.to).push(tmp_path / "new", told)
    assert place.names() == {"thesis.txt"}


def test_a_publication_that_was_interrupted_is_not_complete_and_can_be_continued(place, tmp_path, monkeypatch):
    told = publication(tmp_path / "new")
    interrupted = {
        **told,
        "checksums": {**told["checksums"], "README.md": "0" * 64},
    }  # as if the bytes changed on the way
    with pytest.raises(PublishError, match=r"README\.md.*unchanged"):
        destination_of(place.to).push(tmp_path / "new", interrupted)
    marker = destination_of(place.to).marker()
    assert marker is None or marker["complete"] is False
    destination_of(place.to).push(tmp_path / "new", told)
    assert destination_of(place.to).holds(told["checksums"])
