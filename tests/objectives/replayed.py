"""Evaluations that differ in their random numbers alone, replayed hundreds of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.ops.graphs.recording import lighten, trace_operations

Results = tuple[Tensor, ...]


def replayed(function: Callable[[], Results]) -> Callable[[], Results]:
    """
    The function as a graph, where that gives the same bits at two states of the generator.

    Where it cannot be recorded, as where it reads a number, it is the function itself.
    """
    before = torch.get_rng_state()
    expected = [_at(seed, function) for seed in (1, 2)]
    try:
        with pyro.validation_enabled(False), Unvalidated():
            graph: Any = trace_operations(lambda: function())
        lighten(graph)
    except RuntimeError:
        torch.set_rng_state(before)
        return function
    with torch.no_grad():
        for seed, (values, after) in zip((1, 2), expected, strict=True):
            found, state = _at(seed, graph)
            assert all(map(torch.equal, found, values)) and torch.equal(state, after)
    torch.set_rng_state(before)
    replay: Callable[[], Results] = torch.no_grad()(graph)
    return replay


def _at(seed: int, function: Callable[[], Results]) -> tuple[Results, Tensor]:
    torch.default_generator.manual_seed(seed)
    return function(), torch.get_rng_state()
