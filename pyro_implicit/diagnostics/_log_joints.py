"""The model's log-density at many unconstrained draws, and its score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError, SiteError
from pyro_implicit.guides.initialization.log_joint import LogJoint
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.evaluation_mode import evaluation_mode

__all__ = ["LogJoints"]


class LogJoints:
    """
    ``log p(data, latents) + log|dlatents/du|`` at rows of ``u``, one run of the model for each.

    Nothing is asked of the model but that it runs. Networks are in evaluation mode.

    :param model: a Pyro model.
    :param sites: its latent sites, in the order in which ``u`` holds them.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        sites: Sequence[LatentSite],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._log_joint = LogJoint(model, sites, args, kwargs)

    def check_deterministic(self, u: Tensor) -> None:
        """
        Refuses models that draw random numbers beside their latents.

        :raises SiteError: if two evaluations at ``u`` of shape ``(m,)`` differ.
        """
        with torch.no_grad(), evaluation_mode():
            first, second = self._log_joint(u), self._log_joint(u)
        if not torch.allclose(first, second, equal_nan=True):
            raise SiteError(
                "two evaluations of the model at the same latents differ by "
                f"{(first - second).abs().item():.3g} nats: a latent site of the model is not "
                "among the draws, or a plate draws a random subsample. Pass all data, write "
                "pyro.plate(name, size, subsample_size=len(x)), and draw every latent."
            )

    def values(self, u: Tensor) -> Tensor:
        """
        The log-densities at rows of ``u``.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: log-densities, shape ``(n,)``.
        """
        with torch.no_grad(), evaluation_mode():
            self.check_deterministic(u[0])
            return torch.stack([self._log_joint(row) for row in u])

    def scores(self, u: Tensor) -> Tensor:
        """
        The gradients of the log-densities at rows of ``u``.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: gradients with respect to ``u``, shape ``(n, m)``.
        :raises NonFiniteError: if one is not finite.
        """
        rows = []
        with evaluation_mode():
            self.check_deterministic(u[0])
            for row in u:
                leaf = row.detach().requires_grad_(True)
                with torch.enable_grad():
                    rows.append(torch.autograd.grad(self._log_joint(leaf), leaf)[0])
        scores = torch.stack(rows)
        bad = int((~scores.isfinite().all(-1)).sum())
        if bad:
            raise NonFiniteError(
                f"the gradient of the model's log-density is not finite at {bad} of {len(u)} draws;"
                " look for a likelihood scale that reaches 0, or for NaN in the data"
            )
        return scores
