"""What checking a recipe needs: errors, files, the recipe, the registry. No torch."""
