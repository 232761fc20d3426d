"""Conversations as prompts: chat templates run with bounds on time, memory and length.

A template comes with a model and is a program of whoever made it. transformers runs it in jinja2's sandbox, which
keeps it from files and from Python's insides, but not from running for ever or from filling the memory. Here it has
`SECONDS` of time (a timer, so that this is for the main thread alone), `MEMORY` more bytes than the process has
already, and `LONGEST` characters to write. Python answers to the timer between two of its own steps; a template that
spends its time within one, such as `{{ 10 ** (10 ** 9) }}`, ends with its process, `GRACE` later.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from pipelines.core.errors import CommandError
from pipelines.data.chat_templates import end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 2.0
GRACE = 5.0
"""Seconds beyond its time after which a template that cannot be interrupted is ended with its process."""
STDERR = 2
MEMORY = 256 << 20
LONGEST = 1 << 20
"""Characters of a prompt."""


class OverLimit(CommandError):
    """A template took too long, or too much."""


def prompt_text(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], seconds: float = SECONDS
) -> str:
    """What a conversation is to the model, up to where its answer begins. Raises CommandError."""
    from jinja2 import TemplateError

    try:
        with limited(seconds, MEMORY):
            text: str = tokenizer.apply_chat_template(
                [dict(each) for each in messages], tokenize=False, add_generation_prompt=True
            )
    except MemoryError:
        raise OverLimit(f"the chat template took more than {MEMORY >> 20} MB; shorten the conversation") from None
    except (TemplateError, TypeError, KeyError, IndexError, ValueError, RecursionError, OverflowError) as error:
        sentence = " ".join(str(error).split())[:200]
        raise CommandError(f"the model's chat template refuses these messages: {sentence}") from None
    if len(text) > LONGEST:
        raise OverLimit(
            f"the chat template wrote {len(text)} characters, more than {LONGEST}; shorten the conversation"
        )
    return text


def bounded_end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """`end_of_turn`, within the same bounds; None too for a template that needs more."""
    try:
        with limited(SECONDS, MEMORY):
            return end_of_turn(tokenizer)
    except (OverLimit, MemoryError):
        return None


@contextmanager
def limited(seconds: float, memory: int) -> Iterator[None]:
    """Bound the time and the memory that is added inside the `with` block. Raises OverLimit, and lets MemoryError
    through. In the main thread alone: time runs out by a signal, and where that is not heard, with exit code 1."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("templates run in the main thread")

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise OverLimit(f"the chat template ran for more than {seconds:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _size() + memory
    before = signal.signal(signal.SIGALRM, ring)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=STDERR)
    try:
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _size() -> int:
    """Bytes of this process's address space; a bound far above any where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 1 << 60
