"""Preferences: the better of two answers."""
