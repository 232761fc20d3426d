"""WHICH weights learn: each tuner is a block whose verb `apply` prepares a model."""
