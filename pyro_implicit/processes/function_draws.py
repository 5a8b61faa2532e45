"""How an implicit process draws functions: from Bayesian networks, and the same ones again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyro
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.processes.random_functions import outputs_in_front

__all__ = ["frozen", "network_functions"]

_MIN_PLATE_DIM = -20  # nobody nests more plates than that


def network_functions(prior: BayesianModule, inputs: Tensor, num_functions: int) -> Tensor:
    """Outputs of a Bayesian network with as many draws of its parameters, ``(S, [K,] N)``."""
    with poutine.block(), ExitStack() as stack:
        dim = _enter_at_a_free_dim(num_functions, stack)
        values: Tensor = prior(inputs)
    if num_functions == 1:
        values = values[None]
    else:  # dimensions of size 1 stand for the plates around the process
        values = values.reshape(num_functions, *values.shape[-1 - dim :])
    if values.dim() == 2:
        return values
    if values.dim() != 3:
        raise ShapeError(
            f"the network returned shape {tuple(values.shape[1:])} for {len(inputs)} inputs; "
            "expected (N,), (N, 1) or (N, K)."
        )
    return outputs_in_front(values)


def _enter_at_a_free_dim(size: int, stack: ExitStack) -> int:
    """Enters a plate left of the rows, at a dimension of no plate around the process."""
    dim = -2
    while True:
        try:
            stack.enter_context(pyro.plate("_functions", size, dim=dim))
            return dim
        except ValueError:  # two plates at one dimension
            if dim < _MIN_PLATE_DIM:
                raise
            dim -= 1


@contextmanager
def frozen(seed: int | None) -> Iterator[None]:
    """Draws within it from a seed, if there is one; the caller's random numbers go on after it."""
    if seed is None:
        yield
        return
    with RandomStream(seed):
        yield
