"""A stage is complete or invisible; a run folder has one writer; gc frees what no run uses and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from pipelines.core.errors import Busy
from pipelines.core.files import home, lock
from pipelines.runs.workspace import RunFolder, StageStore, collect


def make(store: StageStore, mark: str, inputs: tuple[str, ...] = (), text: str = "x") -> Path:
    with store.attempt(mark) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)
        return store.finish(mark, {"inputs": list(inputs)})


def test_a_stage_is_invisible_until_it_is_finished(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.attempt("abc") as folder:
        (folder / "weights").write_text("half")
        assert store.complete("abc") is None
        store.finish("abc", {"inputs": []})
    assert store.complete("abc") == tmp_path / "stages" / "abc"
    assert not folder.exists()


def test_an_attempt_keeps_its_checkpoints_over_a_failure_and_nothing_else(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.attempt("abc") as folder:
        (folder / "junk").write_text("x")
    store.give_up("abc")
    assert not folder.exists()
    with store.attempt("abc") as folder:
        (folder / "checkpoints" / "checkpoint-3").mkdir(parents=True)
        (folder / "checkpoints" / "checkpoint-3" / "complete.json").write_text("{}")
    store.give_up("abc")
    assert folder.exists()


def test_an_attempt_that_another_run_made_needless_leaves_nothing(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    make(store, "abc")
    with store.attempt("abc"):  # which waited for the other
        assert store.complete("abc") is not None
    assert sorted(path.name for path in store.stages.iterdir()) == ["abc", "abc.lock"]


def _attempt_in_another_process(root: Path, queue: multiprocessing.Queue[float]) -> None:
    with StageStore(root).attempt("abc"):
        queue.put(time.monotonic())


def test_two_processes_never_make_the_same_stage_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[float] = context.Queue()
    with StageStore(tmp_path).attempt("abc"):
        other = context.Process(target=_attempt_in_another_process, args=(tmp_path, queue))
        other.start()
        time.sleep(0.3)
        left = time.monotonic()
    entered = queue.get(timeout=10)
    other.join()
    assert entered >= left


def test_a_second_writer_of_a_run_folder_is_refused(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "runs" / "x", StageStore(tmp_path))
    with (
        place.open("name: x\n"),
        pytest.raises(Busy, match="in use by another process"),
        lock(place.folder / ".lock", wait=False),
    ):
        pass


def test_a_changed_stage_leaves_the_old_one_in_the_history(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    place = RunFolder(tmp_path / "runs" / "x", store)
    first, second = make(store, "aaaa"), make(store, "bbbb")
    with place.open("name: x\n"):
        place.link("stages/01-mrpc", first)
        place.link("stages/01-mrpc", second)
        place.link("stages/02-gone", first)
        place.prune({"stages/01-mrpc"})
    assert os.readlink(place.folder / "stages" / "01-mrpc") == str(second)
    assert sorted(path.name for path in (place.folder / "history").iterdir()) == ["01-mrpc-aaaa", "02-gone-aaaa"]
    assert (place.folder / "stages" / "01-mrpc" / "model" / "weights").read_text() == "x"


def test_gc_frees_what_no_run_reaches(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    place = RunFolder(tmp_path / "runs" / "x", store)
    make(store, "base")
    tuned = make(store, "tuned", ("base",))
    make(store, "unused", text="12345")
    with store.attempt("started") as folder:
        (folder / "model.tmp").write_text("1")
    (store.data).mkdir()
    (store.data / "blocks.npy").write_text("123")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "abc.json").write_text("{}")
    with place.open("name: x\n"):
        place.link("stages/01-tuned", tuned)
    dry = collect(tmp_path, dry_run=True)
    assert (store.stages / "unused").exists()
    freed = collect(tmp_path)
    assert dry.folders == freed.folders
    assert {Path(each).name for each in freed.folders} >= {"unused", "started.partial", "blocks.npy", "abc.json"}
    assert sorted(path.name for path in store.stages.iterdir() if path.is_dir()) == ["base", "tuned"]
    assert freed.bytes >= 6


def test_gc_leaves_alone_what_is_being_made_and_what_is_young(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    make(store, "unused")
    assert collect(tmp_path, older_than=1).folders == []
    with store.attempt("busy") as folder:
        (folder / "x").write_text("1")
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=collect, args=(tmp_path,))
        process.start()
        process.join()
        assert folder.exists()
    assert not (store.stages / "unused").exists()


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FINERY_HOME", str(tmp_path / "h"))
    assert home() == tmp_path / "h"
    monkeypatch.delenv("FINERY_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "finery"
