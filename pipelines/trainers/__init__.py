"""HOW weights learn: stages that train, and the one loop they share."""
