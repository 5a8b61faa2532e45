"""Discrete latents that are listed and summed out."""
