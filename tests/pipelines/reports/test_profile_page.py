"""The page that says where the time of a run's training stages goes."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.core.load import loads
from pipelines.reports.profile_page import write_profile_page

RECIPE = loads("""\
name: one-run
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
""")
PROFILE = {
    "steps": 10,
    "seconds_per_step": 0.04,
    "device": "2 threads",
    "precision": "bf16",
    "flops_per_step": 3.2e9,
    "matrix_rate": 1.6e11,
    "utilisation": 0.5,
    "kinds": {"matrix products": 0.03, "<outside>": 0.01},
    "operations": [{"name": "aten::<mm>", "kind": "matrix products", "calls": 12.0, "seconds": 0.02}],
}


def test_each_profiled_stage_has_its_kinds_operations_and_trace(tmp_path: Path):
    place = tmp_path / "stages" / "01-mrpc"
    place.mkdir(parents=True)
    write_profile_page(tmp_path, RECIPE)
    assert not (tmp_path / "profile.html").exists()
    (place / "profile.json").write_text(json.dumps(PROFILE))
    write_profile_page(tmp_path, RECIPE)
    page = (tmp_path / "profile.html").read_text()
    assert "40.0 ms a step, the mean of 10, on 2 threads in bf16" in page
    assert "3.2 GFLOP a step, 50% of the 160 GFLOP/s" in page
    assert "<td>matrix products</td><td>30.00</td><td>75.0%</td>" in page
    assert "&lt;outside&gt;" in page
    assert "<td>aten::&lt;mm&gt;</td><td>matrix products</td><td>12</td><td>20.00</td><td>50.0%</td>" in page
    assert 'href="stages/01-mrpc/trace.json.gz"' in page
