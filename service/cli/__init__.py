"""The command `finery`: checks and shows things itself, and runs what touches weights as a child process."""
