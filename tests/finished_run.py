"""One small finished run with models of several tasks, made once for all tests that only read it."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SENTENCE = (
    "the a cat dog film book was is good bad fine dull not very on in it saw read runs sleeps and or but so we they"
)
WORDS = SENTENCE.split()
RECIPE = """
name: finished
seed: 7
model: {architecture: {preset: bert-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32}}
tokenizer: {train: wordpiece, vocab_size: 150}
stages:
  - {stage: supervised, id: para, task: glue/mrpc, max_length: 24, tuner: {name: lora, r: 2}, arguments: {max_steps: 2}}
  - {stage: supervised, id: span, task: squad, from: model, max_length: 32, arguments: {max_steps: 1}}
  - {stage: supervised, id: race, task: race/middle, from: model, max_length: 32, arguments: {max_steps: 1, per_device_train_batch_size: 4}}
  - {stage: multi_task, id: several, from: model, tasks: [{task: glue/rte, max_length: 24}, {task: glue/stsb, max_length: 20}], arguments: {max_steps: 2}}
  - {stage: supervised, id: mine, from: model, max_length: 16, arguments: {max_steps: 1},
     task: {kind: classification, columns: [text], label: label, train: mine.csv, validation: mine.csv}}
  - {stage: evaluate, baselines: [majority]}
  - {stage: publish, from: para, to: published}
"""


@dataclass(frozen=True)
class Finished:
    """Where everything lies."""

    root: Path

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.root / "runs" / "finished"

    @property
    def scores(self) -> dict[str, Any]:
        """What its evaluate stage measured."""
        found: dict[str, Any] = json.loads((self.run / "stages" / "06-evaluate" / "metrics.json").read_text())
        return found


@contextmanager
def inside(root: Path) -> Iterator[None]:
    """The working folder, the data and the home of the run."""
    before, folder = {name: os.environ.get(name) for name in ("FINERY_HOME", "FINERY_DATA")}, Path.cwd()
    os.environ |= {"FINERY_HOME": str(root / "home"), "FINERY_DATA": str(root / "data")}
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(folder)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@cache
def finished() -> Finished:
    """The run, made at the first call."""
    from pipelines.core.load import load
    from pipelines.runs.run import run
    from tests.clean_process import forked_proofs

    root = Path(tempfile.mkdtemp(prefix="finished-")).resolve()
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    _write_data(root)
    (root / "recipe.yaml").write_text(RECIPE)
    with inside(root), forked_proofs():
        run(load(root / "recipe.yaml"), root / "runs" / "finished")
    return Finished(root)


def _write_data(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    drawn = random.Random(1)

    def text(words: int = 8) -> str:
        return " ".join(drawn.choice(WORDS) for _ in range(drawn.randint(2, words)))

    def write(name: str, split: str, **columns: Any) -> None:
        folder = root / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"{split}-00000-of-00001.parquet")

    for split, rows in (("train", 24), ("validation", 16), ("test", 5)):
        hidden = split == "test"
        both = {"sentence1": [text() for _ in range(rows)], "sentence2": [text() for _ in range(rows)]}
        labels = [-1 if hidden else at % 2 for at in range(rows)]
        write("glue/mrpc", split, **both, label=labels, idx=list(range(rows)))
        write("glue/rte", split, **both, label=labels, idx=list(range(rows)))
        write(
            "glue/stsb",
            split,
            **both,
            label=[-1.0 if hidden else drawn.uniform(0, 5) for _ in range(rows)],
            idx=list(range(rows)),
        )
        if not hidden:
            contexts = [text(14) for _ in range(rows)]
            answers = [{"text": [context.split()[0]], "answer_start": [0]} for context in contexts]
            write(
                "squad/plain_text",
                split,
                id=[f"{split}{at}" for at in range(rows)],
                title=["t"] * rows,
                context=contexts,
                question=[text(4) for _ in contexts],
                answers=answers,
            )
            write(
                "race/middle",
                split,
                example_id=[f"middle{at}.txt" for at in range(rows)],
                article=[text(20) for _ in range(rows)],
                answer=["ABCD"[at % 4] for at in range(rows)],
                question=[text(4) + (" _" if at % 2 else "") for at in range(rows)],
                options=[[text(3) for _ in range(4)] for _ in range(rows)],
            )
    lines = [f'"{text()}",{drawn.choice(["no", "yes"])}' for _ in range(20)]
    (root / "mine.csv").write_text("\n".join(["text,label", *lines]) + "\n")
