"""A tiny classifier and its tokenizer."""

from tests.classifiers import classifier, sentences, tokenizer

__all__ = ["classifier", "sentences", "tokenizer"]
