"""A large corpus is pretrained on in the memory that a small one takes, and one that is larger than memory at all."""

from __future__ import annotations

import json
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipelines.data.references import DatasetReference
from tests import tiny
from tests.end_to_end.forked import fork, limit_memory, run_recipe

RECIPE = """\
name: large
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 500, max_train_samples: 1000}
stages:
  - stage: pretrain
    datasets: [{path: text.jsonl}]
    block_size: 64
    dataset_num_proc: 2
    arguments: {max_steps: 5, global_batch_size: 8, save_strategy: 'no'}
"""
SMALL, LARGE = 4 << 20, 320 << 20
"""Bytes of the two files."""
ROOM = 100 << 20
"""What the large file may take beyond the small one: text and tokens of a window, and chunks on their way. Its text alone
takes more than three times as much."""
BEYOND, BOUND = 2 << 30, 1 << 30
"""Bytes of a file, and what the processes of a run that learns from it may hold together."""


def write(file: Path, size: int) -> None:
    """Rows of a thousand bytes, no two the same, of a few words."""
    words = tiny.WORDS
    texts = [" ".join(words[(step * row + row) % len(words)] for step in range(260))[:970] for row in range(97)]
    with open(file, "w") as out:
        for row in range(size // 1000):
            out.write(json.dumps({"text": f"{row} {texts[row % 97]}"}) + "\n")


def measured(recipe: str, overrides: list[str], folder: str, home: str, into: str, room: int | None = None) -> None:
    """Run the recipe, and write down the most memory that this process and all its children together held, in bytes.

    With `room` this process is refused more than so many bytes beside what it has mapped, and reads the text to its end.

    What `getrusage` says of children counts what they held as a copy of this process, before they became another.
    """
    held, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            sizes = []
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "spawn_main" in " ".join(child.cmdline()):
                        sizes.append(child.memory_info().rss)
            held[0] = max(held[0], sum(sizes))

    thread = threading.Thread(target=watch)
    thread.start()
    if room is not None:
        limit_memory(room)
    run_recipe(recipe, overrides, folder, home)
    text = DatasetReference(path=str(Path(recipe).with_name("text.jsonl")))
    rows = 0 if room is None else sum(1 for _ in text.texts(streaming=True))
    done.set()
    thread.join()
    Path(into).write_text(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, held[0], rows]))
    sys.exit(0)


def peaks(folder: Path, size: int, *overrides: str, room: int | None = None) -> list[int]:
    """(this process, all its children) in bytes, and the rows that were read at the end."""
    folder.mkdir()
    write(folder / "text.jsonl", size)
    (folder / "large.yaml").write_text(RECIPE)
    places = (str(folder / "run"), str(folder / "home"), str(folder / "peaks.json"))
    try:
        assert fork(measured, str(folder / "large.yaml"), list(overrides), *places, room, seconds=1500) == 0
    finally:
        (folder / "text.jsonl").unlink()
    held: list[int] = json.loads((folder / "peaks.json").read_text())
    return held


@pytest.mark.long
@pytest.mark.parametrize("streaming", [True, False])
def test_memory_does_not_grow_with_the_corpus(streaming: bool, tmp_path: Path) -> None:
    words = [f"stages.pretrain.datasets=[{{path: text.jsonl, streaming: {str(streaming).lower()}}}]"]
    small, large = peaks(tmp_path / "small", SMALL, *words), peaks(tmp_path / "large", LARGE, *words)
    print(f"streaming {streaming}: {small} bytes, then {large}")
    assert large[0] - small[0] < ROOM
    assert large[1] - small[1] < ROOM
    assert large[1] > 0  # other processes took part


@pytest.mark.long
def test_a_text_larger_than_the_memory_that_a_run_may_use_is_learnt_from(tmp_path: Path) -> None:
    """The run may not hold or map the half of the text at once: it learns from a stream of it, and reads it all."""
    words = ["stages.pretrain.datasets=[{path: text.jsonl, streaming: true}]"]
    own, others, rows = peaks(tmp_path / "beyond", BEYOND, *words, room=BOUND)
    print(f"{BEYOND} bytes of text: this process held {own} bytes, the others {others}")
    assert own + others < BOUND
    assert rows == BEYOND // 1000
