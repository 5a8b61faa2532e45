"""When a printed result of a test says that something was found."""

from __future__ import annotations

__all__ = ["SIGNIFICANCE_LEVEL"]

SIGNIFICANCE_LEVEL = 0.05
