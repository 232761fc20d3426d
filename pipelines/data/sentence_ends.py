"""Where sentences end: a regular expression, for pairs of segments that need no better splitter.

A sentence ends behind `.`, `!`, `?` or `…`, with the quotes and brackets that close there, where white space follows and
the next letter is not a small one; and at a blank line. A single line end ends nothing, for text may be wrapped.
Abbreviations before a capital, such as "Mr. Smith", are cut too.
"""

from __future__ import annotations

import re

ENDS = re.compile(r"""(?<=[.!?…])["'”’»«)\]_]*(?=\s+(?![a-z\s]))|(?=\n[^\S\n]*\n)""")


def sentence_ends(text: str) -> list[int]:
    """Positions behind each sentence but the last, before the white space that follows, ascending."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [end for end in dict.fromkeys(match.end() for match in ENDS.finditer(text)) if first < end < last]
