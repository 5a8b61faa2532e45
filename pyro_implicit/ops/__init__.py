"""Tensor operations; nothing here imports Pyro."""
