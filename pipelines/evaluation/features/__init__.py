"""Frozen features and the linear classifier on them: what is known before anything is tuned."""
