"""Fixtures of the contracts."""

from tests.classifiers import evaluation_context, tokenizer

__all__ = ["evaluation_context", "tokenizer"]
