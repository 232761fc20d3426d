"""A stand-in for the fresh interpreter in which a publication is proved: a child forked from a process that has imported
torch and transformers, and nothing of Finery. The script, its words, its folder and its environment are the real ones.

`python -I clean_process.py` is that process; it reads a job a line and answers with the exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


@contextmanager
def forked_proofs() -> Iterator[None]:
    """Let `verify` run its commands in forked children while the context is open."""
    from pipelines.publishing import verify

    with tempfile.TemporaryDirectory() as home:
        server = subprocess.Popen(
            [sys.executable, "-I", __file__],
            env=verify._bare(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None

        def run(command: list[str], cwd: str, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
            assert command[:2] == [sys.executable, "-I"]
            server.stdin.write(json.dumps([command[2:], cwd, dict(env)]) + "\n")
            server.stdin.flush()
            code, said = json.loads(server.stdout.readline())
            return subprocess.CompletedProcess(command, code, "", said)

        real, verify.subprocess = verify.subprocess, SimpleNamespace(run=run)  # type: ignore[assignment]
        try:
            yield
        finally:
            verify.subprocess = real
            server.stdin.close()
            server.wait(60)
            server.stdout.close()


def _serve() -> None:
    import peft  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast  # noqa: F401

    torch.set_num_threads(1)
    assert not {"pipelines", "service"} & set(sys.modules)
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        words, folder, environment = json.loads(line)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os._exit(_run(words, folder, environment, said.fileno()))
            _, status = os.waitpid(child, 0)
            said.seek(0)
            text = said.read().decode(errors="replace")
        os.write(answers, (json.dumps([os.waitstatus_to_exitcode(status), text]) + "\n").encode())


def _run(words: list[str], folder: str, environment: dict[str, str], said: int) -> int:
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    code: Any = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    _serve()
