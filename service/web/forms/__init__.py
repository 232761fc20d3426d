"""The form of a recipe, made of its JSON Schema: fields from a schema, a recipe from what was filled in, mistakes at their fields."""
