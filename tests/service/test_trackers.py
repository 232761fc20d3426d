"""A job reports to a tracker whose address is a secret of its project."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.environments import environment
from tests.mlflow_server import mlflow_server, runs_of, until

RECIPE = """\
name: tracked
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}], max_train_samples: 100, block_size: 32,
     arguments: {max_steps: 10, logging_steps: 5, per_device_train_batch_size: 4, report_to: mlflow}}
"""


@pytest.mark.long
def test_a_job_reaches_mlflow_by_a_secret_of_its_project(tmp_path: Path) -> None:
    client = environment(tmp_path / "client", "FINERY_TRACKERS_BIN", "trackio", "wandb", "mlflow-skinny")
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW", "FINERY"))}
    outer |= {"FINERY_PRIVATE_ENDPOINTS": "true", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [str(client / "python"), "-m", "service.cli", "serve", "--home", str(tmp_path / "home"), "--port", "0"]
    serving = subprocess.Popen(
        [*words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=outer
    )
    try:
        assert serving.stdout is not None
        told = json.loads(serving.stdout.readline())
        token = Path(told["admin_token"]).read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with (
            httpx.Client(base_url=f"{told['url']}/api/v1", headers=headers, timeout=60) as api,
            mlflow_server(tmp_path, "127.0.0.2") as root,  # a job's own 127.0.0.1 is in its own network
        ):
            assert api.put("/secrets/MLFLOW_TRACKING_URI", json={"value": root}).status_code == 204
            named = {"recipe": RECIPE, "secrets": ["MLFLOW_TRACKING_URI"]}
            answer = api.post("/jobs", json=named)
            assert answer.status_code == 201, answer.text
            job = answer.json()["id"]
            until(lambda: api.get(f"/jobs/{job}").json()["state"] in ("succeeded", "failed"), 400)
            events = api.get(f"/jobs/{job}/events", params={"limit": 1000}).text
            assert api.get(f"/jobs/{job}").json()["state"] == "succeeded", events
            assert "is left out from here on" not in events, events
            (run,) = runs_of(root, "tracked")
    finally:
        serving.terminate()
        serving.wait(60)
    assert (run["info"]["run_name"], run["info"]["status"]) == (job, "FINISHED")
    assert {each["key"] for each in run["data"]["metrics"]} >= {"loss", "learning_rate", "train_loss"}
    assert root not in events
