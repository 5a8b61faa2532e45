"""Models under ``torch.func.vmap``: their densities, and what has no rule for it."""
