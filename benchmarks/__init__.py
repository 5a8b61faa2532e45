"""Measurements: ``python -m benchmarks list`` tells which, ``run`` runs one."""
