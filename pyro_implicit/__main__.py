"""``python -m pyro_implicit``: Bayesian neural network regression on real data."""

from __future__ import annotations

import sys

from pyro_implicit._main.cli import main

if __name__ == "__main__":
    sys.exit(main())
