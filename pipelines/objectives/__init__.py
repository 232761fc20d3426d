"""What pretraining asks the model to do."""
