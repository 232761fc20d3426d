"""Hub names are answered by the folders in FINERY_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.core.data_files import mirror_candidates
from pipelines.core.errors import DataError
from pipelines.data import mirror as mirrors


def make(root: Path, name: str, text: str = "a") -> None:
    (root / name).mkdir(parents=True)
    (root / name / "train.jsonl").write_text(f'{{"text": "{text}"}}')


def first_text(path: str) -> str:
    source = mirrors.find(path, None)
    assert source is not None
    return str(source.load("train")[0]["text"])


def test_the_owner_folder_comes_before_the_bare_name_and_the_first_root_before_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setenv("FINERY_DATA", f"{one}{os.pathsep}{two}")
    make(two, "owner/set", "two-owner")
    assert first_text("owner/set") == "two-owner"
    make(one, "set", "one-bare")
    assert first_text("owner/set") == "one-bare"
    make(one, "owner/set", "one-owner")
    assert first_text("owner/set") == "one-owner"
    assert first_text("set") == "one-bare"


@pytest.mark.parametrize("path", ["../set", "owner/../set", "/set", "a/b/c", ".", "..", "own er/set", "~/set", ""])
def test_no_name_leaves_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    root = tmp_path / "root"
    root.mkdir()
    make(tmp_path, "set")
    (root / "train.jsonl").write_text('{"text": "a"}')
    monkeypatch.setenv("FINERY_DATA", str(root))
    assert mirrors.find(path, None) is None
    assert mirror_candidates(path) == []


def test_a_folder_without_data_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tokenizers").mkdir()
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    assert mirrors.find("tokenizers", None) is None
    assert mirrors.looked("owner/tokenizers") == [str(tmp_path / "owner/tokenizers"), str(tmp_path / "tokenizers")]


def test_without_the_variable_nothing_is_found_and_it_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FINERY_DATA", raising=False)
    assert mirrors.find("glue", "mrpc") is None
    assert mirrors.looked("glue") == ["FINERY_DATA (not set)"]


def test_the_owner_of_a_real_set_does_not_matter(mirror: Path):
    for path in ("nyu-mll/glue", "glue"):
        source = mirrors.find(path, "mrpc")
        assert source is not None
        assert source.splits() == ["train", "validation", "test"]
        assert len(source.load("validation")) == 408
        assert str(mirror.resolve() / "glue") in source.describe()


def test_a_missing_configuration_names_those_that_exist(mirror: Path):
    with pytest.raises(DataError, match=r"data set 'glue' .* has no configuration 'mrcp'. Did you mean 'mrpc'\?"):
        mirrors.find("glue", "mrcp")
