"""A recorded step in machine code, by torch's compiler."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pyro_implicit._random import read_random_state, same_random_state

__all__ = ["CompiledGraph", "Trial"]

_SQUARE_ROOTS_OF_EPS = 10.0  # that results may be off: a relative 0.003 in single precision


@dataclass(frozen=True)
class Trial:
    """One run of a compiled graph."""

    results: tuple[Tensor | None, ...]
    random_state: Any  # after it


class CompiledGraph:
    """
    A recorded graph, compiled when it is first run.

    Random numbers are torch's own, so that it makes the draws of the recording; what it makes of
    them differs by rounding, since operations are fused.

    :param fx.GraphModule recorded: the operations of a step; it is left as it is, and its
        parameters are shared.
    """

    def __init__(self, recorded: fx.GraphModule) -> None:
        graph = copy.deepcopy(recorded.graph)  # of operations alone
        graph.eliminate_dead_code()
        self._plain = fx.GraphModule(recorded, graph)
        self._run: Any = None
        #: of the fastest trial
        self.seconds = math.inf
        self._failure = ""
        self._largest: list[float] = []  # norm of each result so far

    def __call__(self, *tensors: Tensor) -> tuple[Any, ...]:
        """
        Runs it.

        :param torch.Tensor tensors: its arguments.
        :returns: the loss and its gradients.
        """
        with torch.no_grad():
            found: tuple[Any, ...] = self._run(*tensors)
        return found

    def tried(self, *tensors: Tensor) -> Trial | None:
        """
        Runs it and looks at the clock; the first time compiles.

        :param torch.Tensor tensors: its arguments.
        :returns: what came of it; None if it cannot be compiled or run.
        """
        start = time.perf_counter()
        try:
            with _as_if_it_had_not_been():
                if self._run is None:  # no compiler for this Python, perhaps
                    options: dict[str, Any] = {"fallback_random": True}
                    # by its own function: torch compiles none more than eight times
                    forward = self._plain.forward
                    self._run = torch.compile(forward, dynamic=False, options=options)
                results = self(*tensors)
        except Exception as error:  # of a compiler, or of none
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._failure = f"{type(error).__name__}: {(lines or [''])[0][:200]}"
            return None
        self.seconds = min(self.seconds, time.perf_counter() - start)
        return Trial(results, read_random_state())

    def why_not(self, trial: Trial | None, expected: Sequence[Tensor | None], state: Any) -> str:
        """
        Compares a trial with the recording, for which rounding is allowed.

        Gradients that have become small are held to what they were: they are differences of
        larger numbers, and rounded as those are.

        :param Trial trial: what :meth:`tried` returned.
        :param expected: the results of the recording at the same random numbers.
        :param state: of the random numbers after it.
        :returns: why it is not to be used, or an empty text.
        """
        if trial is None:
            return self._failure
        if not same_random_state(trial.random_state, state):
            return "it draws other random numbers"
        norms = [0.0 if one is None else float(one.norm()) for one in expected]
        self._largest = [max(a, b) for a, b in zip(norms, self._largest or norms, strict=True)]
        for found, there, most in zip(trial.results, expected, self._largest, strict=True):
            if (found is None) != (there is None):
                return "it has other gradients"
            if found is None or there is None:
                continue
            tolerance = _SQUARE_ROOTS_OF_EPS * torch.finfo(there.dtype).eps ** 0.5
            off = float((found - there).norm())
            if found.dtype != there.dtype or not off <= tolerance * most:
                return f"its numbers differ by more than rounding, by {off:.3g} where {most:.3g} is"
        return ""


@contextmanager
def _as_if_it_had_not_been() -> Iterator[None]:
    """Torch's compiler turns the validation of distributions off, and warns of devices."""
    kind = torch.distributions.Distribution
    validates = kind._validate_args
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        kind.set_default_validate_args(validates)
