"""A model with its data: what chains need to go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyro_implicit.chains.density import ChainDensity, cast
from pyro_implicit.chains.latents import latent_shapes
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint

__all__ = ["Program"]


class Program:
    """
    A model with the arguments that chains sample it for.

    :param model: a Pyro model.
    :param args: its arguments.
    :param kwargs: its keyword arguments.
    """

    def __init__(
        self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs

    def density(self, sites: list[LatentSite], dtype: torch.dtype) -> ChainDensity:
        """
        The density in some precision.

        :param sites: the latents.
        :param torch.dtype dtype: of latents and data.
        :returns: the density of unconstrained points.
        """
        args, kwargs = cast(self.args, dtype), cast(self.kwargs, dtype)
        return ChainDensity(LogJoint(self.model, sites, args, kwargs), dtype)

    def check_latents(self, sites: Sequence[LatentSite]) -> None:
        """
        Refuses another model than the one whose chains were saved.

        :param sites: the latents of the chains.
        :raises StateError: if the model has other latents, or of other shapes.
        """
        saved = {site.name: tuple(site.shape) for site in sites}
        found = latent_shapes(self.model, self.args, self.kwargs)
        if found != saved:
            raise StateError(
                f"these chains are of another model or of other data: their latents are {saved}, "
                f"and with these arguments the model has {found}. Pass the model that they "
                "sampled, with the same data, or none: Chains.from_state_dict(state)."
            )
