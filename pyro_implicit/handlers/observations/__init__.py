"""What is observed: whether it counts, has a gradient, a fitting shape and enough digits."""
