"""Instructions for encoder-decoders."""
