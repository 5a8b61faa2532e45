"""Training with Lightning (extra ``lightning``): several devices, exact resume."""
