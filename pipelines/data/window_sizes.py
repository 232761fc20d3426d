"""How many tokens of a window a question may take, and how many neighbouring windows may share: known before a run."""

from __future__ import annotations

LONGEST_QUESTION = 64
"""Tokens of a question. Devlin et al. 2019, `run_squad.py`: max_query_length."""
SHORTEST = 16
"""Tokens of a window below which nothing useful fits."""
SPECIAL = 4
"""Special tokens of a pair at most: RoBERTa has `<s> A </s></s> B </s>`."""


def question_room(max_length: int) -> int:
    """Tokens after which a question is cut: a quarter of the window at most."""
    return min(LONGEST_QUESTION, max_length // 4)


def widest_stride(max_length: int) -> int:
    """The most tokens that windows can share whatever the question, so that each window moves on."""
    return max_length - question_room(max_length) - SPECIAL - 1


def stride_of(max_length: int, doc_stride: int | None) -> int:
    """Tokens that neighbouring windows share: what is given, else a third of a window, as 128 of 384 are."""
    return min(max_length // 3 if doc_stride is None else doc_stride, widest_stride(max_length))
