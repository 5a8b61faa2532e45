"""Distributions that can be drawn from but not evaluated."""
