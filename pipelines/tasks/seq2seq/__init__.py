"""Sequence to sequence: a text is rewritten."""
