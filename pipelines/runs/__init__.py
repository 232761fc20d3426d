"""Runs: the order of stages, the run folder, fingerprints, processes and hosts."""
