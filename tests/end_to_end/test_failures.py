"""Whatever goes wrong ends with one sentence that says where and what to do, the right exit code, and nothing half-written."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.events import read_events
from pipelines.core.files import lock
from tests.end_to_end import forked

RECIPE = """\
name: failing
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - stage: supervised
    id: mine
    task: {kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}
    max_length: 16
    arguments: {max_steps: 6, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1, save_steps: 3}
  - {stage: evaluate}
  - {stage: publish, to: registry/failing}
"""


def rows(count: int, labels: tuple[str, ...] = ("good", "bad")) -> str:
    words = ("river", "harbour", "letter", "winter", "garden", "station")
    lines = [f"the {words[n % 6]} of the {words[n * 5 % 6]} number {n},{labels[n % len(labels)]}" for n in range(count)]
    return "\n".join(["text,label", *lines, ""])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the recipe and its two files."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "train.csv").write_text(rows(40))
    (folder / "dev.csv").write_text(rows(12))
    return folder


class Ended:
    """How a command ended, and what it left."""

    def __init__(self, code: int, said: Path, work: Path, home: Path) -> None:
        self.code, self.work, self.home = code, work, home
        self.said = said.read_text(errors="replace") if said.exists() else ""
        self.run = work / "runs" / "failing"
        self.events = list(read_events(self.run / "events.jsonl"))

    def sentence(self) -> str:
        """The only thing that is said."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        assert len(lines) == 1, self.said
        assert lines[0].startswith("finery: ")
        assert "Traceback" not in self.said
        return lines[0].removeprefix("finery: ")

    def failed(self, stage: str | None, reason: str, *words: str) -> None:
        """Exit code 1, one sentence naming the stage, an event that says the same, and nothing half-written."""
        assert self.code == 1, self.said
        sentence = self.sentence()
        if stage is not None:
            assert sentence.startswith(f"stage '{stage}': ")
        for word in words:
            assert word in sentence
        last = self.events[-1]
        assert (last["event"], last["message"], last["reason"]) == ("failed", sentence, reason)
        assert last.get("stage") == stage
        self.nothing_half_written()

    def nothing_half_written(self) -> None:
        for root in (self.work, self.home):
            left = [
                path for path in root.rglob("*") if path.name.endswith((".tmp", ".incoming", ".written", ".doomed"))
            ]
            assert left == []
        for partial in self.home.glob("stages/*.partial"):
            assert {path.name for path in partial.iterdir()} == {"checkpoints"}
            checkpoints = list((partial / "checkpoints").iterdir())
            assert checkpoints
            assert all((checkpoint / "complete.json").is_file() for checkpoint in checkpoints)
        for link in (self.run / "stages").glob("*"):
            assert link.is_dir(), f"{link} points nowhere"
        assert not (self.work / "registry").exists() or not list((self.work / "registry").iterdir())


def go(
    work: Path,
    *overrides: str,
    limits: dict[str, int] | None = None,
    words: list[str] | None = None,
    **environment: str,
) -> Ended:
    """Run the recipe in a forked child."""
    said, home = work.parent / "said", Path(os.environ["FINERY_HOME"])
    said.unlink(missing_ok=True)
    code = forked.fork(
        forked.command,
        words or ["run", "recipe.yaml", *overrides],
        str(work),
        str(said),
        limits,
        {"FINERY_HOME": str(home), **environment},
    )
    return Ended(code, said, work, home)


def test_a_loss_that_is_not_a_number(work: Path) -> None:
    ended = go(work, "stages.mine.arguments.learning_rate=1e30", "stages.mine.arguments.max_grad_norm=0")
    ended.failed("mine", "diverged", "the loss is", "at step", "lower arguments.learning_rate (now 1e+30)")
    assert not (ended.run / "stages" / "01-mine").exists()
    assert [event["stage"] for event in ended.events if event["event"] == "stage_finished"] == ["tokenizer"]
    good = go(
        work,
        "stages=[{stage: supervised, id: mine, task: {kind: classification, columns: [text], label: label, train: train.csv}, max_length: 16, arguments: {max_steps: 1}}]",
    )
    assert good.code == 0, good.said
    assert next(event for event in good.events if event["event"] == "stage_finished")["stage"] == "tokenizer"


def test_a_column_that_is_not_there(work: Path) -> None:
    go(work, "stages.mine.task.columns=[comment]").failed("mine", "data_error", "comment", "text", "label")


def test_a_missing_label_column_is_named_with_what_was_found(work: Path) -> None:
    go(work, "stages.mine.task.label=sentiment").failed("mine", "data_error", "sentiment", "text", "label")


def test_a_parquet_file_cut_short(work: Path) -> None:
    table = pa.table({"text": ["a b"] * 40, "label": ["x", "y"] * 20})
    pq.write_table(table, work / "train.parquet")
    whole = (work / "train.parquet").read_bytes()
    (work / "train.parquet").write_bytes(whole[: len(whole) // 2])
    go(work, "stages.mine.task.train=train.parquet").failed("mine", "data_error", "train.parquet")


def test_a_parquet_file_with_a_broken_middle(work: Path) -> None:
    table = pa.table({"text": [f"some words {n}" for n in range(400)], "label": ["x", "y"] * 200})
    pq.write_table(table, work / "train.parquet", compression="zstd")
    whole = bytearray((work / "train.parquet").read_bytes())
    whole[4:400] = bytes(396)
    (work / "train.parquet").write_bytes(whole)
    go(work, "stages.mine.task.train=train.parquet").failed("mine", "data_error", "train.parquet")


def test_bytes_that_are_not_utf_8(work: Path) -> None:
    (work / "train.csv").write_bytes(rows(40).encode().replace(b"number 17", b"caf\xe9"))
    go(work).failed("mine", "data_error", "train.csv", "UTF-8")


@pytest.mark.parametrize("content", ["", "text,label\n"], ids=["empty", "heading only"])
def test_a_file_without_rows(work: Path, content: str) -> None:
    (work / "train.csv").write_text(content)
    go(work).failed("mine", "data_error", "train.csv")


def test_a_label_of_the_validation_rows_that_was_never_trained(work: Path) -> None:
    (work / "dev.csv").write_text(rows(12, ("good", "bad", "middling")))
    ended = go(work)
    assert ended.code == 1, ended.said
    assert "middling" in ended.sentence()
    assert ended.sentence().startswith("stage '")
    assert ended.events[-1]["reason"] == "data_error"
    ended.nothing_half_written()


def test_a_data_set_that_is_nowhere_names_the_places(work: Path, tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
    inline = "stages.mine.task={kind: classification, columns: [text], label: label, train: nobody/has-this}"
    ended = go(work, inline, FINERY_DATA=os.pathsep.join(map(str, roots)))
    ended.failed("mine", "data_error", "nobody/has-this", *map(str, roots))


def test_memory_that_runs_out(work: Path) -> None:
    overrides = ["model.architecture.hidden_size=1024", "model.architecture.intermediate_size=4096"]
    # weights of 100 MB, and as much again for gradients and each moment of AdamW, however small the batch is
    ended = go(work, *overrides, limits={"extra": 1 << 28})
    ended.failed("mine", "out_of_memory", "memory ran out", "per_device_train_batch_size", "max_length")


def test_a_second_writer_of_the_run_folder_is_refused(work: Path) -> None:
    with lock(work / "runs" / "failing" / ".lock"):
        ended = go(work)
    assert ended.code == 1
    assert "in use by another process" in ended.sentence()
    assert "another name" in ended.sentence()
    assert ended.events == []
    assert not (ended.run / "recipe.yaml").exists()


BAD = {
    "an unknown key": ("name: failing", "nmae: failing", "did you mean"),
    "an unknown preset": ("bert-tiny", "bert-tinny", "bert-tiny"),
    "an unknown stage": ("stage: publish", "stage: publsih", "publish"),
    "a path as the name": ("name: failing", "name: ../../outside", "name"),
    "an absolute path as the name": ("name: failing", "name: /tmp/outside", "name"),
    "a path as an id": ("id: mine", "id: ../../mine", "id"),
    "dots as an id": ("id: mine", "id: ..", "id"),
    "an import path as a stage": ("stage: supervised", "stage: 'os:system'", "os:system"),
    "an import path as a tuner": ("max_length: 16", "tuner: pipelines.tuners.lora:LoRA", "pipelines.tuners.lora:LoRA"),
    "an import path as a tokenizer": ("train: wordpiece", "train: os.system", "os.system"),
    "a tag of Python": ("name: failing", "name: !!python/object/apply:os.system ['touch hacked']", ""),
    "a reserved argument": ("max_steps: 6", "output_dir: /tmp/x", "output_dir"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_recipe_exits_2_and_leaves_nothing(work: Path, what: str) -> None:
    old, new, word = BAD[what]
    assert old in RECIPE
    (work / "recipe.yaml").write_text(RECIPE.replace(old, new))
    before = sorted(path.name for path in work.parent.rglob("*"))
    ended = go(work)
    assert ended.code == 2, ended.said
    assert "recipe.yaml:" in ended.said
    assert word.lower() in ended.said.lower()
    assert "Traceback" not in ended.said
    assert sorted(path.name for path in work.parent.rglob("*") if path.name != "said") == before
    assert list(ended.home.iterdir()) == []


def test_a_recipe_that_unfolds_without_end_exits_2_at_once(work: Path) -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (work / "recipe.yaml").write_text("\n".join([*bomb, RECIPE]))
    began = time.monotonic()
    ended = go(work)
    assert ended.code == 2
    assert time.monotonic() - began < 30
    assert not (work / "runs").exists()


@pytest.fixture(scope="session")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A process may have mounts of its own here."""
    if sys.platform != "linux":
        pytest.skip("needs Linux's mount namespaces")
    answer = tmp_path_factory.mktemp("mounts") / "answer"
    forked.fork(forked.may_mount, str(answer))
    if answer.exists():
        pytest.skip(f"this system gives a process no mounts of its own: {answer.read_text()}")


def fill(work: Path, small: str, size: int) -> tuple[int, int, str]:
    """Run on a disk of `size` KiB, then resume on a larger one: (first code, second code, what was said)."""
    said = work.parent / "said"
    code = forked.fork(
        forked.command_on_a_small_disk,
        ["run", "../recipe.yaml"],
        str(work),
        str(said),
        small,
        size,
        ["resume", "runs/failing"],
    )
    return code // 10, code % 10, said.read_text()


# KiB: full at the tokenizer, at the optimizer's state, at a checkpoint's code; at the manifest, in the middle of publishing.
SIZES = [("home", 8), ("home", 320), ("home", 480), ("work", 4), ("work", 100)]
MORE = [("home", size) for size in range(20, 640, 24)] + [("work", size) for size in (8, 12, 16, 20, 24, 40, 160)]


@pytest.mark.parametrize(("small", "size"), [*SIZES, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)])
def test_a_full_disk(work: Path, small: str, size: int, mounts: None) -> None:
    if small == "home" or size == 4:  # a disk of 4 KiB is full before anything is published
        (work / "recipe.yaml").write_text(RECIPE.partition("  - {stage: publish")[0])
    first, second, said = fill(work, small, size)
    assert (first, second) == (1, 0), said
    assert "Traceback" not in said
    assert said.count("finery: ") == 1, said
    assert "full" in said
    assert "free some space" in said
    full = work / f"{small}.full"
    assert not [path for path in full.rglob("*") if path.name.endswith((".tmp", ".incoming", ".written"))]
    for partial in full.glob("stages/*.partial"):
        assert {path.name for path in partial.iterdir()} == {"checkpoints"}
        assert all((checkpoint / "complete.json").is_file() for checkpoint in (partial / "checkpoints").iterdir())
    run = (work / "work.grown" if small == "work" else work / "work") / "runs" / "failing"
    events = list(read_events(run / "events.jsonl"))
    assert events[-1]["event"] == "finished"
    ids = [event["id"] for event in events]
    assert ids == sorted(set(ids))


def test_a_home_that_may_not_be_written(work: Path, mounts: None) -> None:
    said, home = work.parent / "said", Path(os.environ["FINERY_HOME"])
    code = forked.fork(
        forked.command_with_a_read_only, ["run", "recipe.yaml"], str(work), str(said), str(home), str(home)
    )
    ended = Ended(code, said, work, home)
    assert code == 1
    assert str(home) in ended.sentence()
    assert "FINERY_HOME" in ended.sentence()
    ended.nothing_half_written()


def test_a_working_folder_that_may_not_be_written(work: Path, mounts: None) -> None:
    said, home = work.parent / "said", Path(os.environ["FINERY_HOME"])
    code = forked.fork(
        forked.command_with_a_read_only, ["run", "recipe.yaml"], str(work), str(said), str(home), str(work)
    )
    ended = Ended(code, said, work, home)
    assert code == 1
    assert "runs" in ended.sentence()
    assert "another folder" in ended.sentence()
    assert list(home.iterdir()) == []
