"""Neural transport: Markov chains in the noise's space of a bijective guide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._checks import check_model
from pyro_implicit.distributions.implicit_sites import keep_linearisation
from pyro_implicit.exceptions import GuideError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.flat_latents import by_site
from pyro_implicit.handlers.rows.latent_rows import AtDraw
from pyro_implicit.handlers.rows.row_order import BY_NUMBER
from pyro_implicit.inference.noise_map import NoiseMap

__all__ = ["NeuTraReparam"]

#: the one latent site of a model that is transported
NOISE_SITE = "neutra_noise"


class NeuTraReparam:
    r"""
    Neural transport through a bijective implicit guide.

    The model is sampled in the coordinates of the guide's noise, where its posterior is as close to
    a standard normal as the guide is to the posterior (Hoffman et al., NeuTra-lizing Bad Geometry
    in Hamiltonian Monte Carlo Using Neural Transport, 2019).

    Example::

        guide = HyperNetworkGuide(model, generator=AutoregressiveGenerator)
        fit(model, guide, x, y)
        neutra = NeuTraReparam(guide)
        mcmc = MCMC(NUTS(neutra.reparam(model)), num_samples=500)
        mcmc.run(x, y)
        draws = neutra.transform_sample(mcmc.get_samples()["neutra_noise"])  # by site, constrained

    The chain is exact whatever the fit: a poor guide costs effective samples, not correctness. The
    guide is copied: training it further changes nothing here. Unlike
    ``pyro.infer.reparam.NeuTraReparam`` the noise is drawn outside of the model, so that plates,
    scales and masks around the model's latents weigh their own densities alone.

    :param ImplicitGuide guide: a guide that is built, whose generators are certain to be bijective
        and which has no output noise.
    :raises GuideError: for any other guide.
    :raises StateError: for one that is not built yet.
    """

    def __init__(self, guide: ImplicitGuide) -> None:
        self._map = NoiseMap(_checked(guide))

    def reparam(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """
        Puts a model into the noise's space.

        Its log-density there is that of the model at the latents that the noise leads to, plus the
        logarithm of the change of volume.

        :param model: the model that the guide was made for.
        :returns: a model of the one latent ``"neutra_noise"``, shape ``(m,)``; the original ones
            are fixed to what it leads to, those of rows by the numbers that plates show.
        :raises ArgumentError: if the model cannot be called.
        """
        check_model(model)
        zeros = self._map.like.new_zeros(self._map.noise_dim)
        base = dist.Normal(zeros, torch.ones_like(zeros)).to_event(1).mask(False)

        def transported(*args: Any, **kwargs: Any) -> Any:
            noise = pyro.sample(NOISE_SITE, base)
            values, log_volume = self._change(noise)
            pyro.factor("neutra_log_volume", log_volume)  # theory/after.md (neutra-density)
            with AtDraw(values, BY_NUMBER):
                return model(*args, **kwargs)

        return transported

    def transform_sample(self, latent: Tensor) -> dict[str, Tensor]:
        """
        Map draws of a chain to the latents.

        :param torch.Tensor latent: noise, shape ``(..., m)``, as a chain draws it.
        :returns: constrained values by site, shape ``(..., *site_shape)``.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: for another size.
        """
        return self._map.transform_sample(latent, NOISE_SITE)

    def _change(self, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The latents that one noise leads to, and ``log |dlatents/dnoise|``."""
        log_volume, made, values = noise.new_zeros(()), [], {}
        for sampler, z, _ in self._map.pieces(noise):
            fixed = sampler.distribution().given(z)
            keep_linearisation(fixed)  # one pass for both
            log_volume = log_volume + fixed.half_log_det()
            made.append(fixed.rsample())
        for site, part in by_site(torch.cat(made, -1), self._map.sites):
            values[site.name], log_density = site.constrain(site.unpack(part))
            log_volume = log_volume - log_density.sum()
        return values, log_volume


def _checked(guide: Any) -> ImplicitGuide:
    if not isinstance(guide, ImplicitGuide) or isinstance(guide, ConditionalGuide):
        raise GuideError(
            f"NeuTraReparam expects an implicit guide of this package with one distribution of the "
            f"latents, found {type(guide).__name__}. For Pyro's own guides there is "
            "pyro.infer.reparam.NeuTraReparam."
        )
    if not guide.is_bijective:
        raise GuideError(
            f"this {type(guide).__name__} is not certain to be a bijection of noise and latents, "
            "which neural transport needs. Write HyperNetworkGuide(model, "
            "generator=AutoregressiveGenerator), without output noise."
        )
    return guide
