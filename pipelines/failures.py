"""Errors of libraries and of the system, as one sentence with a remedy."""

from __future__ import annotations

import errno

from pipelines.errors import DiskFull, FineryError, OutOfMemory, StageError, Unforeseen

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_NO_SPACE = ("no space left", "disk quota exceeded", "inline_container", "pytorchstreamwriter failed writing", "iostream error")
"""The last three are all that torch.save says when it could not write its file to the end."""


def understood(error: BaseException) -> FineryError:
    """The error a user should read for whatever a stage raised."""
    if isinstance(error, FineryError):
        return error
    text = " ".join(str(error).split())
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(sign in text.lower() for sign in _NO_SPACE):
        place = getattr(error, "filename2", None) or getattr(error, "filename", None)  # a copy names its source first
        return DiskFull(
            f"the disk is full{f' ({place})' if place else ''}; free some space (`finery gc` frees unused stages), then `finery resume`"
        )
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in _NO_MEMORY):
        return OutOfMemory(
            "memory ran out; lower arguments.per_device_train_batch_size (global_batch_size keeps the effective batch) or, in an "
            "evaluate stage, per_device_eval_batch_size, lower "
            "block_size or max_length, or set arguments.activation_checkpointing: true"
        )
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StageError(
            f"{error.filename or 'a file'} may not be opened or written: {error.strerror}; correct its owner and mode, work in "
            "another folder, or set FINERY_HOME to one that you may write"
        )
    return Unforeseen(f"{type(error).__name__}: {text or 'no message'}")
