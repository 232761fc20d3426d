"""What a completion is worth, as one number: rules, classifiers, reward models, judges, and sums of them."""
