"""Token classification: a class for each word."""
