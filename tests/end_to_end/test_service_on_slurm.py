"""A service on a real Slurm cluster: its server dies while a job runs there, and finds it again."""

import os
import signal
import time

import pytest

from tests.end_to_end.test_service_story import SECONDS, Server
from tests.service.executors.slurm_daemons import started

RECIPE = """
name: on-slurm
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - stage: pretrain
    objective: masked_lm
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 200
    arguments: {max_steps: 60, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 5, save_steps: 20}
  - {stage: publish, to: on-slurm}
"""


def eventually(condition, what):
    limit = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < limit, what
        time.sleep(0.2)
    return found


@pytest.mark.long
def test_a_job_on_a_cluster_outlives_the_server_that_submitted_it_and_is_published_once(tmp_path, monkeypatch):
    daemons = started()
    monkeypatch.setenv("SLURM_CONF", str(daemons.configuration))
    monkeypatch.setenv("FINERY_EXECUTOR", "slurm")
    monkeypatch.setenv("FINERY_STOP_SECONDS", "30")
    server = Server(tmp_path)
    try:
        assert {host["name"] for host in server.get("/hosts")} == {"node1", "node2"}
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        server.finery("submit", tmp_path / "recipe.yaml")
        (job,) = server.jobs()
        eventually(lambda: server.get(f"/jobs/{job}")["state"] == "running", "the job does not run")
        server.kill()
        assert daemons.ask("squeue", "--noheader", "--states=running", "--format=%T").split() == ["RUNNING"]
        server.start()
        ended = eventually(
            lambda: (found := server.get(f"/jobs/{job}"))["state"] in ("succeeded", "failed") and found,
            "it does not end",
        )
        assert ended["state"] == "succeeded", ended
        assert len(list((server.home / "jobs" / job / "attempts").iterdir())) == 1
        assert [path.name for path in (server.home / "models" / "default").iterdir()] == ["on-slurm"]
    finally:
        os.kill(server.process.pid, signal.SIGTERM)
        server.process.wait(60)
        daemons.close()
