"""What a model is worth: predictions, metrics, their intervals, and the guessers they are held against."""
