"""Refuses vectorised models that ask for the value of a latent: one answer is given for all."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.func import vmap

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.unvalidated import Unvalidated
from pyro_implicit.objectives.mapped_draws import DrawApart

__all__ = ["check_no_branch", "why_it_branches"]

#: what vmap says of a value that is asked for, in any release of torch
_ASKED = re.compile(
    r"data-dependent control flow|vmap over calling \.item\(\)|Tensor that doesn't have storage"
)


def check_no_branch(model: Any, guide: Any, args: Any, kwargs: Any) -> None:
    """
    Refuses a model whose course depends on values of its latents.

    ``if (w > 0).all():`` is one question about all vectorised draws, and answers for all of them.
    One run of the model under ``vmap``, in which no draw has a value of its own, shows it.

    :param model: a Pyro model.
    :param guide: its guide.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :raises SiteError: for such a model; nothing is said of one that ``vmap`` cannot run.
    """
    line = why_it_branches(model, guide, args, kwargs)
    if line is None:
        return
    raise SiteError(
        "the model asks for the value of what depends on its latents, as "
        f"if (w > 0).any():, bool(), float() and .item() do{line}. With vectorised particles that "
        "is one question for all draws, and one answer. Write torch.where(w > 0, a, b), or loop: "
        "vectorize_particles=False."
    )


def why_it_branches(model: Any, guide: Any, args: Any, kwargs: Any) -> str | None:
    """
    Where a model asks for the value of a latent.

    :param model: a Pyro model.
    :param guide: its guide.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :returns: the place, for a message; None if it does not, or cannot be run under ``vmap``.
    """
    in_model = [False]

    def run(index: Tensor) -> Tensor:
        with DrawApart(), Unvalidated():
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            in_model[0] = True
            poutine.replay(model, trace=drawn)(*args, **kwargs)
        return index

    try:
        with RandomStream(0), torch.no_grad(), poutine.block(), pyro.validation_enabled(False):
            with warnings.catch_warnings(), evaluation_mode():
                warnings.simplefilter("ignore")
                vmap(run, randomness="different")(torch.arange(2))
    except RuntimeError as error:
        if in_model[0] and _ASKED.search(str(error)):
            return _place(error, model)
    except Exception:  # what vmap has no rule for, or the program itself does
        return None
    return None


def _place(error: BaseException, model: Any) -> str:
    """The line of the model, where its file is that of the model's code."""
    code = getattr(getattr(model, "forward", model), "__code__", None)
    trace, found = error.__traceback__, ""
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            found = f" (line {trace.tb_lineno} of {code.co_filename.rsplit('/', 1)[-1]})"
        trace = trace.tb_next
    return found
