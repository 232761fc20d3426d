"""What may come in over the network: recipes, references, URLs and secrets."""
