"""A stand-in for the fresh interpreter in which a publication is proved: a child forked from a process that has imported
torch and transformers, and nothing of Finery. The script, its words, its folder and its environment are the real ones.

`python -I clean_process.py` is that process; it reads a job a line and answers with the exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any


@contextmanager
def forked_proofs() -> Iterator[None]:
    """Let `verify` run its commands in forked children while the context is open."""

    def run(command: list[str], cwd: str, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:2] == [sys.executable, "-I"]
        code, said = run_script(command[2:], cwd, env)
        return subprocess.CompletedProcess(command, code, "", said)

    with _commands_run_by(run):
        yield


@contextmanager
def proofs_forked_from_here() -> Iterator[None]:
    """The same without a process that knows nothing of Finery, for runs that are about something else.

    This process computes with one thread from here on: a child that is forked from several waits for the others' for ever.
    """
    import torch

    torch.set_num_threads(1)

    def run(command: list[str], cwd: str, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, *_fork(command[2:], cwd, dict(env)))

    with _commands_run_by(run):
        yield


def run_script(words: list[str], folder: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """(exit code, what it said) of a script, its words behind it, in a forked child."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([words, folder, dict(environment)]) + "\n")
    server.stdin.flush()
    code, said = json.loads(server.stdout.readline())
    return code, said


@contextmanager
def _commands_run_by(run: Callable[..., subprocess.CompletedProcess[str]]) -> Iterator[None]:
    from pipelines.publishing import verify

    real, verify.subprocess = verify.subprocess, SimpleNamespace(run=run)  # type: ignore[assignment]
    try:
        yield
    finally:
        verify.subprocess = real


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks, made at the first call for all proofs of this one."""
    from pipelines.publishing import verify

    home = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        [sys.executable, "-I", __file__],
        env=verify._bare(home.name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def close() -> None:
        process.communicate()
        home.cleanup()

    atexit.register(close)
    return process


def _serve() -> None:
    gc.disable()  # what is imported stays, and walking over it takes a second
    import peft  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast  # noqa: F401
    from transformers.models.bert import modeling_bert  # noqa: F401
    from transformers.models.gpt2 import modeling_gpt2  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a collection in a child would walk over all of torch and transformers
    gc.enable()
    assert not {"pipelines", "service"} & set(sys.modules)
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        code, _, text = _fork(*json.loads(line))
        os.write(answers, (json.dumps([code, text]) + "\n").encode())


def _fork(words: list[str], folder: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """(exit code, nothing, what it said) of a child that runs the script."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os._exit(_run(words, folder, environment, said.fileno()))
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), "", said.read().decode(errors="replace")


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
