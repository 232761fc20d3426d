"""Everything that touches a model: recipes, stages, architectures, data, trainers, evaluation, publishing."""
