"""Objectives for implicit guides, and prediction with them."""
