"""From a trained stage to a checkpoint that anyone can load: requirements, card, checksums, proof, destination."""
