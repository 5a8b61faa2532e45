"""Observations that are missing or masked: NaN, ``obs_mask``, and latents without a prior."""
