"""Layers that normalise by running statistics what differs from draw to draw."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.networks.evaluation_mode import was_training
from pyro_implicit.handlers.networks.watched_calls import WatchedCalls
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta

__all__ = ["NormInputs", "OtherLatents", "PlainRun", "warning_of_drawn_norms"]

_MAX_CALLS = 8  # of one layer in a run whose inputs are kept
_SEED_OF_OTHERS = 1


class NormInputs(WatchedCalls):
    """
    Notes what comes to the normalisations that this thread calls, and that were in training mode.

    To be used within :func:`~pyro_implicit.handlers.networks.evaluation_mode.evaluation_mode`.

    :ivar dict inputs: by layer with running statistics, its inputs at its first calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[nn.Module, list[Tensor]] = {}

    def note(self, module: nn.Module, given: Any) -> None:
        """
        Keeps the input of a normalisation.

        :param module: what is called.
        :param given: its positional arguments.
        """
        if not isinstance(module, _NormBase) or module.running_mean is None:
            return
        if was_training(module) and given:
            calls = self.inputs.setdefault(module, [])
            if len(calls) < _MAX_CALLS:
                calls.append(given[0].detach())


class PlainRun(Messenger):
    """
    Notes of a run what :class:`OtherLatents` needs to run the model again.

    :ivar dict states: by site, the random state after it.
    :ivar set rows: names of the plates around observations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, Tensor] = {}
        self.rows: set[str] = set()

    def _pyro_post_sample(self, msg: Any) -> None:
        self.states[msg["name"]] = torch.get_rng_state()
        if msg["is_observed"] and not is_auxiliary(msg):
            self.rows |= {f.name for f in msg["cond_indep_stack"] if f.vectorized}


class OtherLatents(Messenger):
    """
    Draws other latents, but for those of rows, and leaves all other random numbers as they are.

    Rows that a plate takes, noise that the model adds, and latents of each row are those of the
    plain run, from the same random state as that one.

    :param PlainRun plain: what was noted of that one.
    """

    def __init__(self, plain: PlainRun) -> None:
        super().__init__()
        self._plain, self._stream = plain, RandomStream(_SEED_OF_OTHERS)

    def _pyro_post_sample(self, msg: Any) -> None:
        in_rows = any(frame.name in self._plain.rows for frame in msg["cond_indep_stack"])
        if not (msg["is_observed"] or in_rows or is_auxiliary(msg) or is_delta(msg)):
            with self._stream:
                msg["value"] = msg["fn"](*msg["args"], **msg["kwargs"])
        if msg["name"] in self._plain.states:  # a sampler may take more numbers for other values
            torch.set_rng_state(self._plain.states[msg["name"]])


def warning_of_drawn_norms(some: NormInputs, others: NormInputs) -> str | None:
    """
    Tells of running statistics that are averages over draws of latents.

    :param NormInputs some: in a :class:`PlainRun`.
    :param NormInputs others: in a run with :class:`OtherLatents`.
    :returns: what to write, for a warning; None if no input depends on the draw.
    """
    drawn = [one for one, calls in some.inputs.items() if _differ(calls, others.inputs.get(one))]
    if not drawn:
        return None
    names = ", ".join(dict.fromkeys(type(one).__name__ for one in drawn))
    return (
        f"layers with running statistics ({names}, in training mode) come after latents that are "
        "drawn: steps normalise each draw by itself, predict and evaluate all draws by one average "
        "over them, which fits none, so that scores may be far below the fit's. Use LayerNorm or "
        "GroupNorm; or call .eval() before fit (net.eval() of a BayesianModule), with statistics "
        "of a trained network."
    )


def _differ(some: list[Tensor], others: list[Tensor] | None) -> bool:
    pairs = zip(some, others or (), strict=False)
    return any(a.shape == b.shape and not bool((a == b).all()) for a, b in pairs)
