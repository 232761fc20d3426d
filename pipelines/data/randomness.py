"""Random numbers that depend on nothing but their coordinates: (seed, stream, draw, position).

A generator with a state gives other numbers when batches are put together otherwise, when processes share the work, or
when a run is resumed. A counter-based one does not: each number is a hash of where it is used (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"). The hash is the finalizer of splitmix64 (Steele et al. 2014, "Fast
splittable pseudorandom number generators", section 3, figure 16, with the constants of Stafford's variant 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: the step between the states of splitmix64."""
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
WORD = 1 << 64

Words: TypeAlias = "npt.NDArray[np.uint64]"


def mix(words: Words) -> Words:
    """Scramble every word: a bijection in which each input bit changes about half of the output bits."""
    import numpy as np

    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
    return words ^ (words >> np.uint64(31))


def _absorb(state: Words, value: Words) -> Words:
    """The state after one more coordinate: different values lead to different states."""
    import numpy as np

    return mix(state + (value + np.uint64(1)) * np.uint64(GOLDEN))


def uniforms(seed: int, stream: int, draws: npt.ArrayLike, length: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) for positions 0 to length - 1 of each draw, (draws, length)."""
    import numpy as np

    state = mix(np.asarray([seed % WORD], dtype=np.uint64))
    state = _absorb(state, np.asarray([stream % WORD], dtype=np.uint64))
    state = _absorb(state, np.asarray(draws).astype(np.uint64))  # (draws,)
    words = _absorb(state[:, None], np.arange(length, dtype=np.uint64)[None, :])  # (draws, length)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
