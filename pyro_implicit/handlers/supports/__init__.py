"""Supports of latents and observations."""
