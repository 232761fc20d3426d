"""One file for each step of the schema: `NNNN_what.py`."""
