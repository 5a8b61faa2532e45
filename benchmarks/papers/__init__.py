"""Experiments of the papers, with controls, by paper."""
