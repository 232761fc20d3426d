"""The verbs that answer one request: evaluate, predict, publish, generate, attention and more."""
