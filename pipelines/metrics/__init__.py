"""Metrics, their intervals, and tests of differences."""
