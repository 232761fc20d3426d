"""Score files and submissions by the official rules of GLUE, SQuAD and RACE."""
