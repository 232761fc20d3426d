"""Studies: a recipe with a matrix, its cells, its search, its table."""
