"""Language models asked zero- and few-shot questions."""
