"""Fuzz one reader in this process: `python -m tests.fuzzing.fuzz TARGET --engine atheris|hypothesis --seconds N`.

The process has the target's memory and no more, and ends with a trace when one input takes too long; exit 0 says that
nothing was found, anything else names the finding and, on the last line, the input in hexadecimal digits.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

from tests.fuzzing.targets import SECONDS, TARGETS, Target

LONGEST = 1 << 16
"""Bytes of an input."""


def guarded(target: Target, content: bytes) -> None:
    """One input; what it does beyond a sentence is printed, and ends the process."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        target(content)
    except BaseException:
        traceback.print_exc()
        print(f"input: {content.hex()}", file=sys.stderr, flush=True)
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def by_hypothesis(target: Target, seconds: float) -> int:
    """Inputs from the seeds, cut, joined, repeated and with bytes of their kind exchanged, as hypothesis shrinks them."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    seeds = target.seeds()
    words = [word for seed in seeds for word in seed.split(b'"')] + [
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"9" * 400,
        b"[" * 2000,
    ]
    piece = st.one_of(st.sampled_from(words), st.binary(max_size=12), st.text(max_size=8).map(str.encode))

    @st.composite
    def inputs(draw: st.DrawFn) -> bytes:
        content = draw(st.sampled_from(seeds))
        for _ in range(draw(st.integers(0, 4))):
            begin = draw(st.integers(0, len(content)))
            end = draw(st.integers(begin, min(len(content), begin + 40)))
            content = content[:begin] + draw(piece) * draw(st.sampled_from((1, 1, 1, 50))) + content[end:]
        return content[:LONGEST]

    done = 0
    until = time.monotonic() + seconds

    @settings(
        max_examples=100_000, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(inputs())
    def run(content: bytes) -> None:
        nonlocal done
        if time.monotonic() > until:
            raise KeyboardInterrupt
        guarded(target, content)
        done += 1

    with suppress(KeyboardInterrupt):
        run()
    return done


def by_atheris(target: Target, seconds: float) -> int:
    """Inputs that libFuzzer grows by what they reach in our own modules. Does not return: libFuzzer ends the process."""
    import atheris

    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, seed in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(seed)
    arguments = [
        sys.argv[0], f"-max_total_time={seconds:.0f}", f"-max_len={LONGEST}", f"-timeout={SECONDS}", "-rss_limit_mb=0",
        f"-artifact_prefix={corpus}/found-", "-print_final_stats=1", "-verbosity=1", "-close_fd_mask=0", str(corpus),
    ]  # fmt: skip
    atheris.Setup(arguments, lambda content: guarded(target, content))
    atheris.Fuzz()
    return 0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), default="atheris")
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    target = TARGETS[given.target]
    if given.engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["pipelines", "service"]):
            warm(target)
    else:
        warm(target)
    resource.setrlimit(resource.RLIMIT_AS, (target.memory, target.memory))
    random.seed(0)
    done = (by_hypothesis if given.engine == "hypothesis" else by_atheris)(target, given.seconds)
    print(f"inputs: {done}")
    return 0


def warm(target: Target) -> None:
    """Every library is imported before the memory is bounded and the clock runs."""
    for seed in target.seeds():
        target(seed)


if __name__ == "__main__":
    sys.exit(main())
