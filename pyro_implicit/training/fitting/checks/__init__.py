"""What a fit notices of its data, model and guide, and warns of."""
