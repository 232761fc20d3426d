"""Serving one model from a process of its own: `python -m pipelines serve-model`, asked over a Unix socket."""
