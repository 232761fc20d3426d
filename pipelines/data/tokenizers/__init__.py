"""Vocabularies that are trained: WordPiece, BPE, byte-level BPE, Unigram."""
