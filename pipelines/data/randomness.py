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


ROUNDS = 6


def permuted(numbers: npt.ArrayLike, size: int, seed: int, stream: int) -> npt.NDArray[np.int64]:
    """Where a permutation of `range(size)` puts these numbers: one permutation for each (seed, stream), never held.

    A Feistel network over the next even number of bits, applied again where it leaves the range (Black and Rogaway
    2002, "Ciphers with Arbitrary Finite Domains", section 3, "cycle-walking").
    """
    import numpy as np

    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    key = _absorb(mix(np.asarray([seed % WORD], dtype=np.uint64)), np.asarray([stream % WORD], dtype=np.uint64))
    keys = [_absorb(key, np.asarray([turn], dtype=np.uint64)) for turn in range(ROUNDS)]

    def once(words: Words) -> Words:
        left, right = words >> half, words & mask
        for each in keys:
            left, right = right, left ^ (_absorb(each, right) & mask)
        return (left << half) | right

    words = once(np.atleast_1d(np.asarray(numbers)).astype(np.uint64))
    while (outside := words >= size).any():
        words[outside] = once(words[outside])
    return words.astype(np.int64)
