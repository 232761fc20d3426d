"""Tables of allowed keys and types, so that a recipe is checked without importing torch.

Each table repeats what a class of another library accepts; tests/contracts/test_fields.py holds it against the live
class of the pinned version.
"""
