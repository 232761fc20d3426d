"""Code that runs where this project is not installed: in forked children of a process that has torch, transformers and
PEFT (`clean_process`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.clean_process import run_script

SCRIPT = """\
import json, sys
sys.modules["pipelines"] = sys.modules["service"] = None  # importing them fails, installed or not
import transformers
from transformers import dynamic_module_utils
transformers.utils.logging.disable_progress_bar()
with open("task.json") as file:
    code, task, dynamic_module_utils.HF_MODULES_CACHE = json.load(file)
answer = {}
exec(code, {"__name__": "__main__", "task": task, "answer": answer})
with open("answer.json", "w") as file:
    json.dump(answer, file)
"""


def run(code: str, folder: Path, **task: Any) -> dict[str, Any]:
    """Run `code` in `folder` with `task` in its hands; returns what it put into `answer`. Its cache of code is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stranger.py").write_text(SCRIPT)
    (folder / "task.json").write_text(json.dumps([code, task, str(folder / "modules")]))
    environment = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    status, said = run_script(["stranger.py"], str(folder), environment)
    assert status == 0, f"exit code {status}\n{said}"
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer
