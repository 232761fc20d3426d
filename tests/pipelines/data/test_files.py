"""Users' own files, and folders read as the Hub reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.data_files import choose, configurations
from pipelines.core.errors import DataError
from pipelines.data import files


def test_a_file_is_one_split(tmp_path: Path):
    (tmp_path / "mine.csv").write_text("text,label\nhello,1\n")
    source = files.find(str(tmp_path / "mine.csv"), None)
    assert source is not None
    assert source.splits() == ["train"]
    assert source.load("train").to_list() == [{"text": "hello", "label": "1"}]
    assert source.describe() == str(tmp_path / "mine.csv")


def test_a_pattern_is_one_split_of_all_its_data_files_sorted(tmp_path: Path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [row["text"] for row in files.find(str(tmp_path / "*"), None).load("train")] == ["a.txt", "b.txt"]  # type: ignore[union-attr]
    deep = files.find(str(tmp_path / "**" / "*.txt"), None)
    assert deep is not None
    assert [row["text"] for row in deep.load("train")] == ["a.txt", "b.txt", "sub/c.txt"]


def test_a_file_with_wildcards_in_its_name_is_found_as_it_is(tmp_path: Path):
    (tmp_path / "what[1].txt").write_text("hello")
    (tmp_path / "what1.txt").write_text("other")
    source = files.find(str(tmp_path / "what[1].txt"), None)
    assert source is not None
    assert source.load("train")[0]["text"] == "hello"


def test_a_folder_has_the_splits_of_its_names(tmp_path: Path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(f"text\n{name}\n")
    source = files.find(str(tmp_path), None)
    assert source is not None
    assert source.splits() == ["train", "validation"]


def test_relative_paths_are_left_to_others():
    assert files.find("mine.csv", None) is None
    assert files.looked("mine.csv") == []


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(DataError, match=r"none.csv does not exist"):
        files.find(str(tmp_path / "none.csv"), None)
    with pytest.raises(DataError, match="does not exist"):
        files.find(str(tmp_path / "*.csv"), None)
    (tmp_path / "mine.csv").write_text("text\na\n")
    with pytest.raises(DataError, match="is a file and has no configuration 'x'; leave 'name' out"):
        files.find(str(tmp_path / "mine.csv"), "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no data files"):
        files.find(str(tmp_path / "empty"), None)


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n')
    return folder


def found(folder: Path) -> dict[str, dict[str, list[str]]]:
    return {
        name: {split: [str(file.relative_to(folder)) for file in files] for split, files in splits.items()}
        for name, splits in configurations(folder).items()
    }


LAYOUTS = {
    "shards": (
        ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"],
        {"default": {"train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
                     "test": ["test-00000-of-00001.jsonl"]}},
    ),
    "own split names": (
        ["validation_matched-00000-of-00001.jsonl", "train-00000-of-00001.jsonl"],
        {"default": {"train": ["train-00000-of-00001.jsonl"],
                     "validation_matched": ["validation_matched-00000-of-00001.jsonl"]}},
    ),
    "words": (
        ["my-train.jsonl", "dev.jsonl", "my_test_set.jsonl"],
        {"default": {"train": ["my-train.jsonl"], "validation": ["dev.jsonl"], "test": ["my_test_set.jsonl"]}},
    ),
    "words inside words": (["contest.jsonl", "trainee.jsonl"], {"default": {"train": ["contest.jsonl", "trainee.jsonl"]}}),
    "data folder": (
        ["data/train.jsonl", "data/valid.jsonl"],
        {"default": {"train": ["data/train.jsonl"], "validation": ["data/valid.jsonl"]}},
    ),
    "split folders": (
        ["train/0.jsonl", "train/1.jsonl", "val/0.jsonl"],
        {"default": {"train": ["train/0.jsonl", "train/1.jsonl"], "validation": ["val/0.jsonl"]}},
    ),
    "configurations": (
        ["cola/train.jsonl", "sst2/train.jsonl", "sst2/test.jsonl", "notes.md"],
        {"cola": {"train": ["cola/train.jsonl"]}, "sst2": {"train": ["sst2/train.jsonl"], "test": ["sst2/test.jsonl"]}},
    ),
    "nothing": (["README.txt.bak"], {}),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_belong_to_the_split_in_their_name(tmp_path: Path, layout: str):
    names, expected = LAYOUTS[layout]
    assert found(make(tmp_path, *names)) == expected


README = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: train
    path: [parts/b.jsonl, parts/a.jsonl]
- config_name: whole
  default: true
  data_files:
  - split: train
    path: parts/*.jsonl
  - split: test
    path: held.jsonl
---
# About
"""


def test_the_readme_decides_where_it_declares_configurations(tmp_path: Path):
    make(tmp_path, "parts/a.jsonl", "parts/b.jsonl", "held.jsonl")
    (tmp_path / "README.md").write_text(README)
    assert found(tmp_path) == {
        "whole": {"train": ["parts/a.jsonl", "parts/b.jsonl"], "test": ["held.jsonl"]},
        "small": {"train": ["parts/b.jsonl", "parts/a.jsonl"]},
    }
    assert list(choose(tmp_path, None, "it")) == ["train", "test"]
    assert list(choose(tmp_path, "small", "it")) == ["train"]


@pytest.mark.parametrize("path", ["../secret.jsonl", "/etc/passwd.jsonl", "parts/../../secret.jsonl"])
def test_a_readme_cannot_point_out_of_its_folder(tmp_path: Path, path: str):
    make(tmp_path, "secret.jsonl", "set/train.jsonl", "set/parts/a.jsonl")
    header = f"---\nconfigs:\n- config_name: default\n  data_files: {path}\n---\n"
    (tmp_path / "set" / "README.md").write_text(header)
    files = [file for splits in configurations(tmp_path / "set").values() for each in splits.values() for file in each]
    assert files
    assert tmp_path / "secret.jsonl" not in [file.resolve() for file in files]


@pytest.mark.parametrize(
    "header", ["---\n: [\n---\n", "---\nconfigs: 3\n---\n", "---\nconfigs:\n- 3\n---\n", "no header", "---\n"]
)
def test_a_readme_without_usable_configs_leaves_it_to_the_names(tmp_path: Path, header: str):
    make(tmp_path, "train.jsonl")
    (tmp_path / "README.md").write_text(header)
    assert found(tmp_path) == {"default": {"train": ["train.jsonl"]}}


def test_messages_name_what_there_is(tmp_path: Path):
    make(tmp_path, "cola/train.jsonl", "sst2/train.jsonl")
    with pytest.raises(DataError, match=r"it has several configurations; choose one with 'name': cola, sst2"):
        choose(tmp_path, None, "it")
    with pytest.raises(
        DataError, match=r"no configuration 'sts2'. Did you mean 'sst2'\? Configurations found: cola, sst2"
    ):
        choose(tmp_path, "sts2", "it")
    with pytest.raises(DataError, match=r"it holds no data files; known file endings: .parquet"):
        choose(tmp_path / "cola" / "none", None, "it")


SETS = [
    "ag_news",
    "ai2_arc",
    "alpaca",
    "english_novels",
    "glue",
    "imdb",
    "lambada_openai",
    "mmlu",
    "multi30k",
    "race",
    "squad",
    "trec",
    "wikitext",
]


@pytest.mark.parametrize("name", SETS)
def test_real_folders_are_read_as_the_datasets_library_reads_them(mirror: Path, name: str):
    import datasets

    folder = mirror / name
    configurations_of_library = datasets.get_dataset_config_names(str(folder))
    assert set(configurations(folder)) == set(configurations_of_library)
    for configuration in configurations_of_library:
        theirs = datasets.load_dataset_builder(str(folder), configuration).config.data_files
        expected = {split: [str(Path(file).resolve()) for file in files] for split, files in theirs.items()}
        ours = configurations(folder)[configuration]
        assert {split: [str(file.resolve()) for file in files] for split, files in ours.items()} == expected
