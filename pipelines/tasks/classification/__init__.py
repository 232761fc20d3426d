"""Classification: a class for each text or pair of texts."""
