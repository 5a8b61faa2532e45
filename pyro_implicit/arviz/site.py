"""What an export knows of a site of the model, and of an array that it makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

__all__ = ["Site", "Slot"]


@dataclass(frozen=True)
class Slot:
    """
    The shape and the dimensions of one variable of one group.

    ``plates`` names the plate of each dimension (or ``None``); ``row_dim`` is the (negative)
    dimension that follows the row batches. A log-likelihood has its dimensions from those of the
    observed value, ``of``, at the positions ``kept``.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    plates: tuple[str | None, ...]
    row_dim: int | None = None
    of: Slot | None = None
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class Site:
    """
    A sample site: ``kind`` is latent, deterministic, observed, or free (in no guide).

    ``is_listed``: whether it is a free one whose values can be summed over. ``drawn``: the dtype of
    what is drawn in place of an observation, which may itself be in whole numbers.
    """

    name: str
    kind: str
    value: Slot
    log_prob: Slot | None
    drawable: bool
    is_listed: bool = False
    drawn: torch.dtype | None = None

    @property
    def predicted(self) -> Slot:
        """The variable of the predictive groups."""
        return self.value if self.drawn is None else replace(self.value, dtype=self.drawn)
