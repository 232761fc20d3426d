"""A published recipe names its files without its author's folders, and they are found again by their bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.publishing import provenance
from pipelines.publishing.sources import find, portable, renamed, without_folders


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The author's working folder, and files outside of it."""
    folder = tmp_path / "author"
    write(folder / "rows/train.csv", "text,label\na,1\n")
    write(folder / "many/one.jsonl", "{}\n")
    write(folder / "many/two.jsonl", '{"a": 1}\n')
    write(folder / "base/config.json", "{}")
    write(folder / "base/deep/weights.bin", "w")
    write(tmp_path / "elsewhere/train.csv", "other\n")
    monkeypatch.chdir(folder)
    return folder


def recipe(author: Path) -> dict[str, object]:
    return {
        "model": {"checkpoint": str(author / "base")},
        "stages": [
            {
                "task": {
                    "train": str(author / "rows/train.csv"),
                    "validation": str(author.parent / "elsewhere/train.csv"),
                }
            },
            {"datasets": [{"path": str(author / "many/*.jsonl")}, {"path": "builtin/python-docs"}]},
            {"stage": "publish", "to": str(author / "rows")},
        ],
    }


def test_every_path_that_is_read_becomes_portable_and_none_that_is_written(author):
    plain, sources, names = portable(recipe(author))
    assert plain["model"]["checkpoint"] == "base"
    assert plain["stages"][0]["task"] == {"train": "rows/train.csv", "validation": "data/train.csv"}
    assert [each["path"] for each in plain["stages"][1]["datasets"]] == ["many/*.jsonl", "builtin/python-docs"]
    assert plain["stages"][2]["to"] == str(author / "rows")
    kinds = {each["path"]: (each["kind"], sorted(each["files"])) for each in sources}
    assert kinds == {
        "base": ("folder", ["config.json", "deep/weights.bin"]),
        "rows/train.csv": ("file", ["train.csv"]),
        "data/train.csv": ("file", ["train.csv"]),
        "many/*.jsonl": ("pattern", ["one.jsonl", "two.jsonl"]),
    }
    stated = next(each for each in sources if each["path"] == "rows/train.csv")["files"]["train.csv"]
    content = (author / "rows/train.csv").read_bytes()
    assert stated == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert str(author) not in json.dumps(sources)
    assert without_folders(f"reads {author}/rows/train.csv, and {author}/rows/train.csv.gz", names) == (
        f"reads rows/train.csv, and {author}/rows/train.csv.gz"
    )


def test_two_files_of_one_name_keep_two_names(author, tmp_path):
    write(tmp_path / "third/train.csv", "third\n")
    plain, _, _ = portable({"a": str(tmp_path / "elsewhere/train.csv"), "b": str(tmp_path / "third/train.csv")})
    assert plain == {"a": "data/train.csv", "b": "data/1/train.csv"}


def test_a_file_of_a_server_keeps_its_reference(author, tmp_path, monkeypatch):
    place = write(tmp_path / "references.json", json.dumps({str(author / "rows/train.csv"): "file:file-7"}))
    monkeypatch.setenv(provenance.REFERENCES, str(place))
    plain, sources, _ = portable({"train": str(author / "rows/train.csv")})
    assert plain == {"train": "file:file-7"}
    monkeypatch.chdir(tmp_path)
    found = find(sources, author)
    place = tmp_path / "again"
    names = found.place(sources, place)
    assert (place / renamed(plain, names)["train"]).read_text() == "text,label\na,1\n"
    assert renamed(plain, names)["train"].endswith(".csv")


def test_files_are_found_by_path_then_by_their_bytes_and_put_where_the_recipe_says(author, tmp_path, monkeypatch):
    plain, sources, _ = portable(recipe(author))
    stranger = tmp_path / "stranger"
    write(stranger / "data/train.csv", "other\n")  # by its path in the working folder
    write(stranger / "given/x/renamed.csv", "text,label\na,1\n")  # by its bytes alone
    write(stranger / "given/many/one.jsonl", "{}\n")  # by its path in the data folder
    write(stranger / "given/two.jsonl", '{"a": 1}\n')
    write(stranger / "given/config.json", "{}")
    write(stranger / "given/weights.bin", "w")
    monkeypatch.chdir(stranger)
    found = find(sources, stranger / "given")
    assert found.missing == []
    names = found.place(sources, stranger / "run")
    again = renamed(plain, names)
    assert again == plain  # every name is below the folder
    for name, text in (
        ("rows/train.csv", "text,label\na,1\n"),
        ("data/train.csv", "other\n"),
        ("many/two.jsonl", '{"a": 1}\n'),
        ("base/deep/weights.bin", "w"),
    ):
        assert (stranger / "run" / name).read_text() == text


def test_sources_may_share_files(author, tmp_path):
    write(author / "many/three.jsonl", "[]\n")
    plain, sources, _ = portable(
        {"a": str(author / "many/*.jsonl"), "b": str(author / "many/one.jsonl"), "c": str(author / "many")}
    )
    names = find(sources, None).place(sources, tmp_path / "run")
    assert renamed(plain, names) == plain
    assert sorted(each.name for each in (tmp_path / "run/many").iterdir()) == ["one.jsonl", "three.jsonl", "two.jsonl"]
    assert find(sources, None).place(sources, tmp_path / "run") == names  # done again, it is the same


def test_a_source_lies_apart_where_its_path_would_read_or_be_something_else(author, tmp_path):
    """A file from elsewhere under a name that a pattern matches; what the working folder itself holds."""
    write(author / "data/a.csv", "a\n")
    write(author / "recipe.yaml", "r: 1\n")
    recipe = {"a": str(author / "data/*.csv"), "b": str(tmp_path / "elsewhere/train.csv")}
    recipe |= {"c": str(author / "recipe.yaml"), "d": str(author / "*.yaml"), "e": str(author / "home/x")}
    write(author / "home/x", "x")
    plain, sources, _ = portable(recipe)
    assert plain["b"] == "data/train.csv"
    place = tmp_path / "run"
    names = find(sources, tmp_path).place(sources, place, kept=("recipe.yaml", "home"))
    again = renamed(plain, names)
    assert [each.name for each in place.glob(again["a"])] == ["a.csv"]
    assert (place / again["b"]).read_text() == "other\n"
    assert [again[key] for key in "cde"] == ["elsewhere/2/recipe.yaml", "elsewhere/3/*.yaml", "elsewhere/4/x"]
    assert not (place / "recipe.yaml").exists()
    assert not (place / "home").exists()


def test_a_file_that_was_not_found_is_an_empty_one(author, tmp_path, monkeypatch):
    _, sources, _ = portable({"a": str(author / "rows/train.csv")})
    monkeypatch.chdir(tmp_path)
    assert find(sources, None).place(sources, tmp_path / "run") == {"rows/train.csv": "rows/train.csv"}
    assert (tmp_path / "run/rows/train.csv").read_bytes() == b""


def test_files_that_cannot_lie_in_one_folder_are_one_sentence(tmp_path):
    about = {"sha256": hashlib.sha256(b"a").hexdigest(), "bytes": 1}
    write(tmp_path / "given/a", "a")
    sources = [{"path": path, "kind": "file", "files": {"a": about}} for path in ("x", "x/y")]
    with pytest.raises(DataError, match="cannot lie in one folder"):
        find(sources, tmp_path / "given").place(sources, tmp_path / "run")


def test_what_is_missing_and_what_has_other_bytes_is_one_sentence_each(author, tmp_path, monkeypatch):
    _, sources, _ = portable({"a": str(author / "rows/train.csv"), "b": str(author / "many/one.jsonl")})
    stranger = tmp_path / "stranger"
    write(stranger / "rows/train.csv", "text,label\nb,1\n")
    monkeypatch.chdir(stranger)
    other, missing = find(sources, None).missing
    assert other.startswith("rows/train.csv is not the file that was read: ")
    assert other.endswith("has other bytes")
    assert missing.startswith("many/one.jsonl (SHA-256 ca3d163bab05…) was not found; looked in the working folder")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ""])
def test_a_manifest_that_names_files_outside_is_refused(name, tmp_path):
    source = {"path": "base", "kind": "folder", "files": {name: {"sha256": "0" * 64, "bytes": 1}}}
    with pytest.raises(DataError, match="lies outside of 'base'"):
        find([source], tmp_path)
