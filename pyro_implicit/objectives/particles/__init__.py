"""Draws of an objective: runs of guide and model, one by one, vectorised or mapped."""
