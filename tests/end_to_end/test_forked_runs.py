"""A run that is forked from a process with its libraries imported, beside the same run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STUDY = """\
name: forked
model: {architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - stage: supervised
    id: mine
    task: {kind: classification, columns: [text], label: label, train: ROWS, validation: ROWS}
    max_length: 16
    arguments: {num_train_epochs: 1, global_batch_size: 8}
  - {stage: evaluate}
matrix:
  stages.mine.seed: [3]
"""
SCRIPT = """
import json, os, sys
from pathlib import Path
from pipelines.__main__ import main
from pipelines.core.files import write_text
from pipelines.core.load import load_study

def told(words):
    if words != ["libraries"]:
        return main(words)
    import numpy, torch
    from threadpoolctl import threadpool_info
    print(json.dumps({
        "threads": [torch.get_num_threads(), *(each["num_threads"] for each in threadpool_info())],
        "random": numpy.random.random(),
    }))
    return 0

plan = load_study("study.yaml")
write_text(Path("cell.yaml"), plan.cells[0].recipe.to_yaml())
from pipelines.studies.workers import fork_server
server = fork_server(plan, told)
seen = []
here = Path("here").absolute()
here.mkdir()
for words in (["run", "../cell.yaml"], ["libraries"], ["libraries"]):
    log = here / f"{len(seen)}.log"
    given = {"FINERY_HOME": str(here / "home"), "OMP_NUM_THREADS": "1", "FINERY_PARENT_PID": str(server.pid)}
    seen.append((server.start(words, os.environ | given, here, log).wait(), log.read_text()))
tasks = [Path(f"/proc/{server.pid}/task/{each}/comm").read_text().strip() for each in os.listdir(f"/proc/{server.pid}/task")]
import torch
server.close()
print(json.dumps({"seen": seen, "tasks": tasks, "cuda": torch.cuda.is_initialized()}))
"""


@pytest.mark.long  # three interpreters; test_workers forks runs that train nothing, and looks at the same server
@pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")
def test_a_forked_run_learns_what_a_run_of_its_own_process_learns(tmp_path: Path) -> None:
    words = ("river", "harbour", "letter", "winter", "garden", "station")
    lines = [f"the {words[n % 6]} of the {words[n * 5 % 6]} number {n},{('good', 'bad')[n % 2]}" for n in range(64)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines, ""]))
    (tmp_path / "study.yaml").write_text(STUDY.replace("ROWS", str(tmp_path / "rows.csv")))
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in told["seen"]] == [0, 0, 0], told
    # One thread of the server, and none that does the work of OpenMP or OpenBLAS: it could not be forked safely.
    assert set(told["tasks"]) <= {"python", "python3", "jemalloc_bg_thd"}
    assert len(told["tasks"]) <= 2
    assert not told["cuda"]
    one, two = (json.loads(said) for _, said in told["seen"][1:])
    assert set(one["threads"]) == {1}
    assert one["random"] != two["random"]

    environment |= {"FINERY_HOME": str(tmp_path / "own"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "pipelines", "run", "cell.yaml"], cwd=tmp_path, env=environment, check=True)
    weights, scores = "stages/01-mine/model/model.safetensors", "stages/02-evaluate/metrics.json"
    forked, own = tmp_path / "here" / "runs" / "forked", tmp_path / "runs" / "forked"
    assert (forked / weights).read_bytes() == (own / weights).read_bytes()
    assert (forked / scores).read_text() == (own / scores).read_text()
