"""Multiple choice: the best of several options."""
