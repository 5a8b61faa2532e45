"""The units that chains move in: deviations of the latents, or a root of their covariance."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.chains.kernel import State

__all__ = [
    "MAX_LATENTS_FOR_COVARIANCE",
    "PRECONDITIONS",
    "kind_of",
    "learned_scale",
    "log_size",
    "observe",
    "opened",
    "pulled",
    "shrunk",
    "stretched",
    "window_ends",
]

PRECONDITIONS = ("auto", "dense", "diagonal", None)
#: Up to here "auto" learns a whole covariance, and MCLMC is tuned to smaller steps.
MAX_LATENTS_FOR_COVARIANCE = 64

_WINDOW_ENDS_AS_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7)  # of the warm-up
_MIN_OBSERVATIONS_PER_WINDOW = 3  # and the weight of the units before it


def kind_of(precondition: str | None, num_latents: int) -> str | None:
    """
    What ``"auto"`` stands for.

    :param precondition: one of :data:`PRECONDITIONS`.
    :param int num_latents: ``m``.
    :returns: ``"dense"``, ``"diagonal"`` or None.
    """
    if precondition != "auto":
        return precondition
    return "dense" if num_latents <= MAX_LATENTS_FOR_COVARIANCE else None


def stretched(scale: Tensor, x: Tensor) -> Tensor:
    """
    From the chains' units to the latents'.

    :param torch.Tensor scale: deviations, shape ``(m,)``, or a lower root of the covariance,
        ``(m, m)``.
    :param torch.Tensor x: shape ``(..., m)``.
    :returns: shape ``(..., m)``.
    """
    return x * scale if scale.dim() == 1 else x @ scale.mT


def pulled(scale: Tensor, gradient: Tensor) -> Tensor:
    """
    A gradient in the chains' units.

    :param torch.Tensor scale: as of :func:`stretched`.
    :param torch.Tensor gradient: by the latents, shape ``(C, m)``.
    :returns: shape ``(C, m)``.
    """
    return gradient * scale if scale.dim() == 1 else gradient @ scale


def shrunk(scale: Tensor, u: Tensor) -> Tensor:
    """
    From the latents' units to the chains'.

    :param torch.Tensor scale: as of :func:`stretched`.
    :param torch.Tensor u: shape ``(..., m)``.
    :returns: shape ``(..., m)``.
    """
    if scale.dim() == 1:
        return u / scale
    flat = u.reshape(-1, u.shape[-1])
    units: Tensor = torch.linalg.solve_triangular(scale, flat.mT, upper=False).mT.reshape(u.shape)
    return units


def log_size(scale: Tensor) -> Tensor:
    """
    How large units are.

    :param torch.Tensor scale: as of :func:`stretched`.
    :returns: the mean of the logarithms of the deviations, shape ``()``.
    """
    return (scale if scale.dim() == 1 else scale.diagonal()).log().mean()


def window_ends(num_warmup: int) -> list[int]:
    """
    Tells where the units are learned anew.

    :param int num_warmup: number of steps of the warm-up.
    :returns: numbers of steps after which a window ends; each is longer than the one before.
    """
    return sorted({round(end * num_warmup) for end in _WINDOW_ENDS_AS_SHARES} - {0})


def opened(u: Tensor, kind: str) -> State:
    """
    An empty window.

    :param torch.Tensor u: positions, shape ``(C, m)``.
    :param str kind: ``"dense"`` or ``"diagonal"``.
    :returns: its entries of a state.
    """
    size = u.shape[-1]
    return {
        "window_count": u.new_zeros(()),
        "window_mean": torch.zeros_like(u),
        "window_squares": u.new_zeros((size, size) if kind == "dense" else size),
        # differences are taken from a place nearby, lest single precision loses them
        "window_origin": u.clone(),
    }


def observe(state: State) -> State:
    """
    Takes the positions of a step into the window.

    :param dict state: of the chains, with a window.
    :returns: the new entries.
    """
    count = state["window_count"] + 1
    shifted = state["u"] - state["window_origin"]
    difference = shifted - state["window_mean"]
    mean = state["window_mean"] + difference / count
    rest = shifted - mean
    if state["window_squares"].dim() == 2:
        squares = state["window_squares"] + difference.mT @ rest
    else:
        squares = state["window_squares"] + (difference * rest).sum(0)
    return {"window_count": count, "window_mean": mean, "window_squares": squares}


def learned_scale(state: State) -> Tensor | None:
    """
    The units that a window has seen.

    Deviations are about the mean of each chain: chains in separate modes say nothing about the
    width of either. A covariance from few positions is pulled towards its diagonal, and deviations
    towards the units before.

    :param dict state: of the chains, with a window.
    :returns: deviations ``(m,)``, or a lower root of the covariance, ``(m, m)``; None if the window
        is too short, or no chain moved in it: units of zero would keep them there for ever.
    """
    count, squares = float(state["window_count"]), state["window_squares"]
    if count < _MIN_OBSERVATIONS_PER_WINDOW:
        return None
    seen = squares / ((count - 1) * len(state["u"]))
    before = state["scale"].square()
    if before.dim() == 2:
        before = before.sum(-1)
    variance = seen.diagonal() if seen.dim() == 2 else seen
    if not bool((variance > 0).all()):
        return None
    weight = count / (count + _MIN_OBSERVATIONS_PER_WINDOW)
    mixed = weight * variance + (1 - weight) * before * _relative(variance, before)
    deviations = mixed.sqrt().clamp(min=torch.finfo(mixed.dtype).tiny ** 0.5)
    if seen.dim() == 1:
        return deviations
    return _root(seen, deviations, count * len(state["u"]))


def _root(covariance: Tensor, deviations: Tensor, count: float) -> Tensor:
    """Of the covariance with these deviations and correlations that are pulled towards zero."""
    own = covariance.diagonal().clamp(min=torch.finfo(covariance.dtype).tiny).sqrt()
    correlation = covariance / own / own[:, None] * (count / (count + 2 * len(deviations)))
    correlation.fill_diagonal_(1.0)
    root, failed = torch.linalg.cholesky_ex(correlation)
    if bool(failed):
        root = torch.eye(len(deviations), dtype=root.dtype, device=root.device)
    root_of_covariance: Tensor = deviations[:, None] * root
    return root_of_covariance


def _relative(variance: Tensor, before: Tensor) -> Tensor:
    """How the units have changed as a whole, which shrinkage leaves alone."""
    return (variance / before).clamp(min=1e-30).log().mean().exp()
