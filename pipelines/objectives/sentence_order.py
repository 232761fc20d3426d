"""Masked LM and sentence-order prediction: which of two neighbouring segments comes first?

Lan et al. 2020, "ALBERT", section 3.1, arxiv.org/abs/1909.11942: two consecutive segments of one document, swapped half
of the time, so that the topic gives nothing away. Labels as in the reference implementation: 0 in order, 1 swapped.
"""

from __future__ import annotations

from typing import Literal

from pipelines.objectives.sentence_pairs import SentencePairs


class SentenceOrder(SentencePairs):
    """Name the hidden tokens, and tell whether the segments are in their order."""

    name: Literal["sentence_order"] = "sentence_order"
