"""Names for jobs, attempts, files, models and tokens: a word, a hyphen, and 26 characters that sort by time.

The characters are a ULID (github.com/ulid/spec) in lower case: 48 bits of milliseconds and 80 random bits in
Crockford's base 32. Ids made by one process strictly increase, also within a millisecond.
"""

from __future__ import annotations

import re
import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PATTERN = re.compile(r"^[a-z]+-[0-7][0-9a-hjkmnp-tv-z]{25}$")
RANDOM_BITS = 80

_lock = threading.Lock()
_last = 0


def new_id(kind: str) -> str:
    """A new id such as `job-01k9…`."""
    global _last
    number = (time.time_ns() // 1_000_000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    with _lock:
        # within a millisecond, or when the clock was set back, count on from the last one
        number = number if number >> RANDOM_BITS > _last >> RANDOM_BITS else _last + 1
        _last = number
    return f"{kind}-{_spelled(number)}"


def _spelled(number: int) -> str:
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def made_at(identifier: str) -> float:
    """When an id was made, in seconds since 1970. Raises ValueError when it is not one of ours."""
    if not PATTERN.match(identifier):
        raise ValueError(f"'{identifier}' is no id: a word, a hyphen and 26 characters")
    number = 0
    for character in identifier.rpartition("-")[2]:
        number = number << 5 | ALPHABET.index(character)
    return (number >> RANDOM_BITS) / 1000
