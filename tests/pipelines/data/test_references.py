"""What a path in a recipe means, and which texts are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.data.references import DatasetReference, texts_of


def reference(folder: Path, **keys: Any) -> DatasetReference:
    return DatasetReference.model_validate(keys, context={"folder": folder})


def mistakes(folder: Path, **keys: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        reference(folder, **keys)
    return [(".".join(map(str, place)), message) for place, message in flatten(caught.value)]


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINERY_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "novels.jsonl").write_text('{"text": "one", "n": 1}\n{"text": " ", "n": 2}\n{"text": null, "n": 3}\n')
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.txt").write_text("a")
    (tmp_path / "notes.md").write_text("a")
    return tmp_path


def test_files_folders_and_patterns_become_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    for path, expected in {
        "novels.jsonl": "novels.jsonl",
        "./novels.jsonl": "novels.jsonl",
        "parts": "parts",
        "parts/*.txt": "parts/*.txt",
        "parts/../novels.jsonl": "novels.jsonl",
        str(folder / "novels.jsonl"): "novels.jsonl",
    }.items():
        assert reference(folder, path=path).path == str(folder / expected)


def test_names_stay_as_they_are(folder: Path):
    for path in ("builtin/python-docs", "wikitext", "Salesforce/wikitext", "owner/data.set"):
        assert reference(folder, path=path).path == path


def test_the_mirror_comes_before_a_folder_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "mirror" / "parts").mkdir(parents=True)
    (folder / "mirror" / "parts" / "train.txt").write_text("mirror")
    monkeypatch.setenv("FINERY_DATA", str(folder / "mirror"))
    assert reference(folder, path="parts").path == "parts"
    assert reference(folder, path="parts").rows() == ["mirror"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("novel.jsonl", "'novel.jsonl' does not exist; looked for {folder}/novel.jsonl. Did you mean 'novels.jsonl'?"),
        ("file:file-1", "'file:file-1' names what a server holds; hand the recipe in with: finery submit"),
        ("./nothing", "'./nothing' does not exist; looked for {folder}/nothing"),
        ("../x/y.csv", "'../x/y.csv' does not exist; looked for {parent}/x/y.csv (there is no folder {parent}/x)"),
        ("/no/such.csv", "'/no/such.csv' does not exist; looked for /no/such.csv (there is no folder /no)"),
        ("parts/*.csv", "'parts/*.csv' matches no data file; looked for {folder}/parts/*.csv (.parquet"),
        ("notes.md", "'notes.md' has an unknown format; known file endings: .parquet"),
        ("builtin/python-doc", "'builtin/python-doc' is not embedded. Did you mean 'builtin/python-docs'?"),
        ("a/b/c", "'a/b/c' is neither a file nor a folder (looked for {folder}/a/b/c), and no Hub name owner/name"),
        (" ", "is empty"),
    ],
)
def test_a_path_that_cannot_be_right_is_a_mistake_that_says_where_it_was_looked_for(
    folder: Path, path: str, expected: str
):
    ((key, message),) = mistakes(folder, path=path)
    assert key == "path"
    assert message.startswith(expected.format(folder=folder, parent=folder.parent)), message


def test_a_reference_reads_the_texts_that_are_not_empty(folder: Path):
    assert reference(folder, path="novels.jsonl").rows() == ["one"]
    assert len(reference(folder, path="novels.jsonl").load()) == 3


def test_a_wrong_column_names_those_that_exist(folder: Path):
    with pytest.raises(
        DataError, match=r"novels.jsonl, split 'train', has no column 'txt'. Did you mean 'text'\? Columns"
    ):
        reference(folder, path="novels.jsonl", text="txt").load()
    with pytest.raises(DataError, match=r"row 1, holds '1' \(int\) in the column 'n', must be a text"):
        reference(folder, path="novels.jsonl", text="n").rows()


def test_a_column_without_any_text_is_refused(folder: Path):
    (folder / "blank.csv").write_text("text,n\n,1\n  ,2\n")
    with pytest.raises(DataError, match=r"has no text in the column 'text': all 2 cells are empty"):
        reference(folder, path="blank.csv").rows()


def test_a_wrong_split_names_those_that_exist(folder: Path):
    with pytest.raises(DataError, match=r"has no split 'test'. Splits found: train"):
        reference(folder, path="novels.jsonl", split="test").rows()


def test_the_block_reads_itself_back(folder: Path):
    block = reference(folder, path="novels.jsonl", text="n")
    assert block.plain() == {"path": str(folder / "novels.jsonl"), "text": "n"}
    assert reference(Path("/"), **block.plain()) == block


def test_the_content_hash_is_that_of_the_split(folder: Path):
    before = reference(folder, path="novels.jsonl").content()
    (folder / "novels.jsonl").write_text('{"text": "changed"}')
    assert reference(folder, path="novels.jsonl").content() != before


def test_real_text_is_read_by_its_hub_name(mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    block = reference(tmp_path, path="english_novels", split="validation")
    rows = block.rows()
    assert len(rows) == 209
    assert rows == block.load()["text"][:]


def column(*cells: Any) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": list(cells)})


def test_texts_keep_their_order_and_white_space_and_empty_ones_are_left_out():
    assert texts_of(column(" b\n", "", None, "a", "\t"), "text", "it") == [" b\n", "a"]


@pytest.mark.parametrize(
    ("cells", "given"), [((None, 3), "row 2, holds '3' (int)"), ((["a"], None), "row 1, holds \"['a']\" (list)")]
)
def test_what_is_no_text_is_named_with_its_row(cells: tuple[Any, ...], given: str):
    with pytest.raises(DataError) as caught:
        texts_of(column(*cells), "text", "it")
    assert str(caught.value).startswith(f"it, {given} in the column 'text', must be a text")


def test_a_column_without_text_is_refused():
    with pytest.raises(DataError, match="it has no text in the column 'text': all 2 cells are empty"):
        texts_of(column(None, " "), "text", "it")
