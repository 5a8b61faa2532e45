"""Training for days with Lightning: any objective, several processes, exact resume."""
