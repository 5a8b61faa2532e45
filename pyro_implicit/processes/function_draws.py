"""How an implicit process draws functions: from Bayesian networks, and the same ones again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.processes.random_functions import outputs_in_front

__all__ = ["frozen", "network_functions"]


def network_functions(prior: BayesianModule, inputs: Tensor, num_functions: int) -> Tensor:
    """Outputs of a Bayesian network with as many draws of its parameters, ``(S, [K,] N)``."""
    with poutine.block(), pyro.plate("_functions", num_functions, dim=-2):
        values: Tensor = prior(inputs)
    if num_functions == 1:
        values = values[None]
    if values.dim() == 2:
        return values
    if values.dim() != 3:
        raise ShapeError(
            f"the network returned shape {tuple(values.shape[1:])} for {len(inputs)} inputs; "
            "expected (N,), (N, 1) or (N, K)."
        )
    return outputs_in_front(values)


@contextmanager
def frozen(seed: int | None) -> Iterator[None]:
    """Draws within it from a seed, if there is one; the caller's random numbers go on after it."""
    if seed is None:
        yield
        return
    with RandomStream(seed):
        yield
