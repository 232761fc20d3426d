"""Preferences without people: judges, constitutions, and the stage that labels a model's own completions with them."""
