"""The errors a user can meet, as one tree, and the sentence for what libraries and the system raise.

FineryError                 exit 1
├── RecipeError             exit 2   the recipe has mistakes; all of them, one line each
├── CommandError            exit 2   the command line asks for something that cannot be
├── StageError              exit 1   a stage could not finish; says which stage and what to do
│   ├── DataError                    a data set, split, column or label is missing or unreadable
│   ├── ModelError                   a checkpoint or a head does not fit
│   │   └── IncompatibleError        what the recipe asks for cannot be done with this model; a study's cell is refused
│   ├── Diverged                     the loss is no longer a finite number
│   ├── OutOfMemory                  the device or the host ran out of memory
│   ├── DiskFull                     a file could not be written
│   ├── ProcessLost                  one of its processes was killed from outside
│   ├── PublishError                 a requirement was not met, or the published copy could not be verified
│   └── Unforeseen                   anything that has no sentence of its own; the console log has the trace
├── Busy                    exit 1   another process writes this run folder
└── Stopped                 exit 75  stopped by a signal; the checkpoint is saved, `finery resume` continues

Every message is one sentence that says what was found and what to do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 75


class FineryError(Exception):
    """Base of every error that is the user's to read."""

    exit_code = EXIT_FAILED
    reason = "internal"
    """The code that events and jobs carry beside the sentence."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with a recipe."""

    key: str
    """Where: a dotted key path, such as `stages.mrpc.tuner.r`. Empty for the whole file."""
    message: str
    """What was given, what is allowed, the nearest known name."""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        return "  ".join(part for part in (place, f"{self.key}: {self.message}" if self.key else self.message) if part)


class RecipeError(FineryError):
    """A recipe with mistakes: every one of them, in the order of the file."""

    exit_code = EXIT_USAGE
    reason = "bad_recipe"

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class CommandError(FineryError):
    """The command line asks for something that cannot be."""

    exit_code = EXIT_USAGE
    reason = "bad_recipe"


@dataclass(eq=False)
class StageError(FineryError):
    """A stage could not finish."""

    message: str
    stage: str | None = field(default=None, kw_only=True)
    """Filled in by `run` when the error leaves the stage."""
    reason = "internal"

    def __str__(self) -> str:
        return f"stage '{self.stage}': {self.message}" if self.stage else self.message


class DataError(StageError):
    """A data set, split, column or label is missing or unreadable."""

    reason = "data_error"


class ModelError(StageError):
    """A checkpoint or a head does not fit what the stage needs."""

    reason = "model_error"


class IncompatibleError(ModelError):
    """What the recipe asks for cannot be done with this model; known only once its config was read."""

    reason = "misfit"


class Diverged(StageError):
    """The loss is no longer a finite number."""

    reason = "diverged"


class OutOfMemory(StageError):
    """The device or the host ran out of memory."""

    reason = "out_of_memory"


class DiskFull(StageError):
    """A file could not be written because the disk, or the quota, is full."""

    reason = "disk_full"


class ProcessLost(StageError):
    """One of the stage's processes was killed from outside; its last checkpoint is kept."""

    reason = "process_lost"


class PublishError(StageError):
    """A requirement was not met, or the published copy could not be verified."""

    reason = "publish_error"


class Unforeseen(StageError):
    """Anything that has no sentence of its own yet."""


class Busy(FineryError):
    """Another process writes this run folder."""

    reason = "busy"


class Stopped(FineryError):
    """Stopped early by a signal; what is done is saved and can be resumed."""

    exit_code = EXIT_STOPPED
    reason = "stopped"


_NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|not enough memory|could not create a primitive(?! desc)"
)
"""The last is oneDNN's for a product in bfloat16 whose code it has no memory for."""
_NO_SPACE = (
    "no space left",
    "disk quota exceeded",
    "inline_container",
    "pytorchstreamwriter failed writing",
    "iostream error",
)
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
            f"the disk is full{f' ({place})' if place else ''}; free some space (`finery gc` frees unused "
            "stages), then `finery resume`"
        )
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text.lower()):
        return OutOfMemory(
            "memory ran out; lower arguments.per_device_train_batch_size (global_batch_size keeps the "
            "effective batch) or, in an "
            "evaluate stage, per_device_eval_batch_size, lower "
            "block_size or max_length, or set arguments.activation_checkpointing: true"
        )
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StageError(
            f"{error.filename or 'a file'} may not be opened or written: {error.strerror}; correct its owner "
            "and mode, work in "
            "another folder, or set FINERY_HOME to one that you may write"
        )
    return Unforeseen(f"{type(error).__name__}: {text or 'no message'}")
