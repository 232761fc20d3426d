"""A fingerprint changes with what changes results, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipelines import fingerprints


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules below `pipelines.sandbox` that a test may write."""
    import pipelines

    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text('"""A."""\nfrom pipelines.sandbox import b\n\nx = 1\n')
    (folder / "b.py").write_text("def f():\n    from pipelines.sandbox.c import y\n    return y\n")
    (folder / "c.py").write_text("y = 1\n")
    (folder / "d.py").write_text("z = 1\n")
    return folder


def code(*modules: str) -> str:
    fingerprints._read.cache_clear()
    fingerprints._exists.cache_clear()
    for name in [name for name in sys.modules if name.startswith("pipelines.sandbox")]:
        del sys.modules[name]
    return fingerprints.code_of(modules)


def test_code_counts_through_every_import_even_one_inside_a_function(package: Path) -> None:
    before = code("pipelines.sandbox.a")
    (package / "c.py").write_text("y = 2\n")
    assert code("pipelines.sandbox.a") != before


def test_code_that_is_not_used_comments_and_docstrings_do_not_count(package: Path) -> None:
    before = code("pipelines.sandbox.a")
    (package / "d.py").write_text("z = 2\n")
    (package / "a.py").write_text('"""Another word."""\n# why\nfrom pipelines.sandbox import b\n\nx = 1\n')
    assert code("pipelines.sandbox.a") == before


def test_the_contract_does_not_count() -> None:
    assert code("pipelines.errors", "pipelines.fields.arguments") == code()


def test_the_loop_counts_for_the_stages_that_train() -> None:
    seen: set[str] = set()
    waiting = ["pipelines.trainers.pretrain"]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += fingerprints._read(module)[1]
    assert {"pipelines.trainers.loop", "pipelines.objectives.losses", "pipelines.data.sentences", "pipelines.data.packing"} <= seen
    assert not any(name.startswith(("pipelines.evaluation", "pipelines.publishing")) for name in seen)


def test_a_folder_hash_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    first = fingerprints.hash_folder(tmp_path)
    (tmp_path / "x").rename(tmp_path / "y")
    second = fingerprints.hash_folder(tmp_path)
    (tmp_path / "y").write_text("22")
    assert len({first, second, fingerprints.hash_folder(tmp_path)}) == 3


def test_a_digest_ignores_the_order_of_keys() -> None:
    assert fingerprints.digest({"a": 1, "b": [2]}) == fingerprints.digest({"b": [2], "a": 1})
    assert fingerprints.digest({"a": 1}) != fingerprints.digest({"a": 1.5})
