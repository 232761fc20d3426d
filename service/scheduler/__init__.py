"""Who runs next and where: a pure choice, the loop that writes it down, and when to try again."""
