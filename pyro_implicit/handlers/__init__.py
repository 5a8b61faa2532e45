"""One run of guide or model looked at as it passes: messengers, rows, pointwise densities."""
