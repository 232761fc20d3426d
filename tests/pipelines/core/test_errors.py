"""Errors of libraries and of the system become one sentence with a remedy."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from pipelines.core.errors import DataError, DiskFull, FineryError, OutOfMemory, StageError, Unforeseen, understood


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/b"), DiskFull, "the disk is full (/a/b)"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), DiskFull, "finery resume"),
        (OSError(errno.ENOSPC, "No space left on device", "/source", None, "/target"), DiskFull, "(/target)"),
        (
            RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
            DiskFull,
            "free some space",
        ),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 124096 vs 123984"),
            DiskFull,
            "free some space",
        ),
        (RuntimeError("basic_ios::clear: iostream error"), DiskFull, "free some space"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), DiskFull, "free some space"),
        (MemoryError(), OutOfMemory, "per_device_train_batch_size"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), OutOfMemory, "max_length"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            OutOfMemory,
            "activation_checkpointing",
        ),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
            OutOfMemory,
            "block_size",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemory, "memory ran out"),
        (RuntimeError("could not create a primitive"), OutOfMemory, "memory ran out"),
        (RuntimeError("could not create a primitive descriptor for x"), Unforeseen, "primitive descriptor"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/a/b"),
            StageError,
            "/a/b may not be opened or written: Permission denied",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/a/b"), StageError, "FINERY_HOME"),
        (KeyError("weights"), Unforeseen, "KeyError: 'weights'"),
        (ValueError(), Unforeseen, "ValueError: no message"),
        (RuntimeError("two\nlines\n\n  of it"), Unforeseen, "RuntimeError: two lines of it"),
    ],
)
def test_an_error_is_understood(error: BaseException, kind: type[FineryError], words: str) -> None:
    found = understood(error)
    assert type(found) is kind
    assert words in str(found)
    assert "\n" not in str(found)


def test_what_is_already_understood_stays_as_it_is() -> None:
    error = DataError("there is no column 'x'")
    assert understood(error) is error


def test_a_real_failed_allocation_of_torch_is_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert isinstance(understood(raised.value), OutOfMemory)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_real_full_device_is_a_full_disk() -> None:
    import torch

    with pytest.raises(OSError) as raised:
        Path("/dev/full").write_text("x" * 100_000)
    assert isinstance(understood(raised.value), DiskFull)
    with pytest.raises((RuntimeError, OSError)) as raised_by_torch:
        torch.save({"x": torch.zeros(100_000)}, "/dev/full")
    assert isinstance(understood(raised_by_torch.value), DiskFull)
