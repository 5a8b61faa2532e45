"""Measurements, each run as ``python -m benchmarks.<name>`` from the root of the repository."""
