"""Talking to a service: where it is, who asks, and what goes wrong on the way."""
