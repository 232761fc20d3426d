"""Labelled tasks: a folder for each kind, with its settings and rows, its training and its evaluation."""
