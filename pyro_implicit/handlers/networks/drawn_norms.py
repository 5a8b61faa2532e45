"""Layers that normalise by running statistics what differs from draw to draw."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from pyro_implicit.handlers.networks.evaluation_mode import was_training

__all__ = ["NormInputs", "warning_of_drawn_norms"]


class NormInputs:
    """
    Notes what comes to the normalisations that this thread calls, and that were in training mode.

    To be used within :func:`~pyro_implicit.handlers.networks.evaluation_mode.evaluation_mode`.

    :ivar dict inputs: by layer with running statistics, its input at its first call.
    """

    def __init__(self) -> None:
        self.inputs: dict[nn.Module, Tensor] = {}
        self._thread = threading.get_ident()
        self._hook: RemovableHandle | None = None

    def __enter__(self) -> NormInputs:
        self._hook = register_module_forward_pre_hook(self._before)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _before(self, module: nn.Module, given: Any) -> None:
        if not isinstance(module, _NormBase) or module.running_mean is None:
            return
        if threading.get_ident() == self._thread and was_training(module) and given:
            self.inputs.setdefault(module, given[0].detach())


def warning_of_drawn_norms(some: NormInputs, others: NormInputs) -> str | None:
    """
    Tells of running statistics that are averages over draws of the weights before them.

    :param NormInputs some: at one draw of the latents.
    :param NormInputs others: at another.
    :returns: what to write, for a warning; None if no input depends on the draw.
    """
    pairs = [(one, some.inputs[one], others.inputs.get(one)) for one in some.inputs]
    drawn = [one for one, a, b in pairs if b is not None and _differ(a, b)]
    if not drawn:
        return None
    names = ", ".join(dict.fromkeys(type(one).__name__ for one in drawn))
    return (
        f"layers that normalise by the rows of a step ({names}, in training mode) come after "
        "weights that are drawn: steps normalise each draw by itself, predict and evaluate all "
        "draws by one running average over them, which fits none, so that scores may be far below "
        "the fit's. Use LayerNorm or GroupNorm; or call .eval() before fit (net.eval() of a "
        "BayesianModule), with statistics of a trained network."
    )


def _differ(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and not bool((a == b).all())
