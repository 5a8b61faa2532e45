"""What several benchmarks share: networks, data sets, fits and figures."""
