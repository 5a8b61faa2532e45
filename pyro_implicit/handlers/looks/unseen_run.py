"""A run of a program that is a look at it, of which nothing outside can tell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyro import poutine

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.looks.no_parameters import making_no_parameters
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.networks.still_statistics import still_statistics

__all__ = ["unseen_run"]


@contextmanager
def unseen_run(*, evaluates: bool = False, warns: bool = False) -> Iterator[None]:
    """
    Programs run within leave no trace: in handlers, random numbers, statistics or Pyro's store.

    Parameters that a run makes are taken back, so that a seed decides where they begin. Each look
    draws the same numbers, from a seed of its own. Gradients and the validation of distributions
    are as they are outside.

    :param bool evaluates: whether networks are in evaluation mode, rather than in their own.
    :param bool warns: whether warnings are shown, rather than left to the run that counts.
    """
    with ExitStack() as stack:
        stack.enter_context(making_no_parameters())
        stack.enter_context(RandomStream(0))
        stack.enter_context(poutine.block())
        if not warns:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        stack.enter_context(evaluation_mode() if evaluates else still_statistics())
        yield
