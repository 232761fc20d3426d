"""Imports done ahead, in a process that runs are forked from: torch, transformers, peft and the code of the stages.

They take seconds of each new process; a fork has them. Studies fork their cells so (`studies.workers`), the service its
jobs (`python -m pipelines warm`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from pipelines.core.registry import STAGES, TOKENIZERS
from pipelines.models import stage_models, tokenizer
from pipelines.runs import fingerprints


def import_ahead(modules: Iterable[str]) -> None:
    """Import `modules` and all of ours that they use. Starts no thread and makes no CUDA context."""
    import_module("threadpoolctl")  # with which a fork tells libraries the number of its threads
    with suppress(OSError):
        list(fingerprints.files())  # hashed once for every fork
    with _gpus_unasked():
        for module in fingerprints.used_by(modules):  # their hashes are then known to every fork too
            with suppress(ImportError):  # the run says what it lacks, if it needs it
                import_module(module)


def modules_of_any_recipe() -> set[str]:
    """The modules that do stages, whatever the recipe."""
    named = {registry.module(name) for registry in (STAGES, TOKENIZERS) for name in registry}
    return {stage_models.__name__, tokenizer.__name__, *named}


@contextmanager
def _gpus_unasked() -> Iterator[None]:
    """Whether there are GPUs is told without CUDA inside the `with` block: a fork could not use it again."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
