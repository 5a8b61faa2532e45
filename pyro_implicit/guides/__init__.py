"""Guides: from a Pyro model's latents to draws of a generator."""
