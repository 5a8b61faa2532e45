"""Errors of torch that come of many draws in one pass, told as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pyro_implicit.exceptions import ImplicitError, SiteError
from pyro_implicit.handlers.errors.value_errors import refuses_parameter

__all__ = ["blames_parallel"]


@contextmanager
def blames_parallel(parallel: bool) -> Iterator[None]:
    """
    Says of an error within that the model takes one draw, and not many in one pass.

    :param bool parallel: whether many draws are in one pass; the model has run with one before.
    :raises SiteError: for an error of shapes.
    """
    try:
        yield
    except (ImplicitError, torch.OutOfMemoryError, torch.linalg.LinAlgError):
        raise  # clear, or no matter of shapes
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if not parallel or refuses_parameter(error):
            raise
        said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise SiteError(
            "the model runs with one draw, and fails with parallel=True, where latents have a "
            f"dimension of draws in front ({said}). Count dimensions from the right and name them, "
            "w[..., 0] and (w * x).sum(-1), not w[0], w.sum() or x @ w (a latent with an event has "
            "the shape (draws, 1, event) then, with a 1 for each plate), or leave parallel out."
        ) from error
