"""Rows of a plate: cut, ordered, and whether they belong together."""
