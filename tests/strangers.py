"""Code that runs where this project is not installed: in children of one process that has torch, transformers and PEFT."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SERVER = """
import gc, json, os, sys
sys.modules["pipelines"] = sys.modules["service"] = None  # importing them fails, installed or not
import peft, torch, transformers
from transformers import AutoModel, dynamic_module_utils
from transformers.models.auto import modeling_auto
from transformers.models.bert import modeling_bert
from transformers.models.gpt2 import modeling_gpt2
transformers.utils.logging.disable_progress_bar()
gc.collect()
gc.freeze()  # a collection in a child would walk over all of them

def run(code, folder, task):
    said = os.open(folder + "/said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1), os.dup2(said, 2)
    os.chdir(folder)
    dynamic_module_utils.HF_MODULES_CACHE = folder + "/modules"
    answer = {}
    exec(code, {"__name__": "__main__", "task": task, "answer": answer})
    with open(folder + "/answer.json", "w") as file:
        json.dump(answer, file)

for line in sys.stdin:
    child = os.fork()
    if not child:
        status = 1
        try:
            run(*json.loads(line))
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    home = tempfile.TemporaryDirectory()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_MODULES_CACHE")}
    environment |= {"HF_HOME": home.name, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", SERVER]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=home.name)

    def close() -> None:
        process.communicate()
        home.cleanup()

    atexit.register(close)
    return process


def run(code: str, folder: Path, **task: Any) -> dict[str, Any]:
    """Run `code` in `folder` with `task` in its hands; returns what it put into `answer`. Its cache of code is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([code, str(folder), task]) + "\n")
    server.stdin.flush()
    status = server.stdout.readline().strip()
    assert status == "0", f"exit code {status}\n{(folder / 'said.txt').read_text()}"
    return json.loads((folder / "answer.json").read_text())
