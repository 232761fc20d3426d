"""Models: opening, heads, tokenizers, logits, sampling."""
