"""Judges: local models, endpoints, reward models, rules."""
