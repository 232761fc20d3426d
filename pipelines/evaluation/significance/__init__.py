"""Tests of whether a difference between two models is more than chance, and corrections for making many of them."""
