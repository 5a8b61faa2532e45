"""Neural transport: Markov chains in the noise's space of a bijective guide."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer import reparam
from torch import Tensor
from torch.distributions import Transform, constraints

from pyro_implicit.exceptions import GuideError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide

__all__ = ["NeuTraReparam"]


class NeuTraReparam(reparam.NeuTraReparam):
    r"""
    Pyro's neural-transport reparameterisation, through a bijective implicit guide.

    The model is sampled in the coordinates of the guide's noise, where its posterior is as close to
    a standard normal as the guide is to the posterior (Hoffman et al., NeuTra-lizing Bad Geometry
    in Hamiltonian Monte Carlo Using Neural Transport, 2019).

    Example::

        guide = HyperNetworkGuide(model, generator=BijectiveGenerator)
        ...                                     # fit it
        neutra = NeuTraReparam(guide)
        kernel = NUTS(neutra.reparam(model))
        mcmc = MCMC(kernel, num_samples=500)
        mcmc.run(data)
        noise = next(iter(mcmc.get_samples().values()))   # of site "..._shared_latent"
        draws = neutra.transform_sample(noise)            # constrained values by site

    The chain is exact whatever the fit: a poor guide costs effective samples, not correctness. The
    guide is copied: training it further changes nothing here.

    :param ImplicitGuide guide: a guide that is built, whose generators are certain to be bijective
        and which has no output noise.
    :raises GuideError: for any other guide.
    :raises StateError: for one that is not built yet.
    """

    def __init__(self, guide: ImplicitGuide) -> None:
        transport = _Transport(_checked(guide))
        self.guide: Any = transport
        self.transform: Any = None
        self.x_unconstrained: dict[str, Any] = {}
        self.is_observed = None

    def transform_sample(self, latent: Tensor) -> dict[str, Tensor]:
        """
        Map draws of a chain to the latents.

        :param torch.Tensor latent: noise, shape ``(..., m)``, as a chain draws it.
        :returns: constrained values by site, shape ``(..., *site_shape)``.
        """
        transport: Any = self.guide
        flat = transport.get_transform()(latent)
        return {site["name"]: site["site"].value(u) for site, u in transport._unpack_latent(flat)}


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
            "generator=BijectiveGenerator), without output noise."
        )
    return guide


class _Names:
    """What Pyro's class reads of a prototype trace: the names of the latent sites."""

    def __init__(self, names: list[str]) -> None:
        self.nodes = dict.fromkeys(names)

    def __contains__(self, name: str) -> bool:
        return name in self.nodes


class _Transport:
    """A guide as Pyro's class wants to see it: an ``AutoContinuous`` one."""

    def __init__(self, guide: ImplicitGuide) -> None:
        self._sites = guide.sites
        samplers = copy.deepcopy(guide.samplers).requires_grad_(False).eval()
        self._parts: list[Any] = list(samplers)
        self.prototype_trace = _Names([site.name for site in self._sites])
        # Pyro's class leaves these plates while it draws the noise
        self.plates = {frame.name: frame for site in self._sites for frame in site.frames}

    def get_base_dist(self) -> dist.TorchDistribution:
        loc = torch.cat([part.preconditioner.loc for part in self._parts])
        return dist.Normal(torch.zeros_like(loc), torch.ones_like(loc)).to_event(1)

    def get_transform(self) -> Transform:
        return _FlowTransform(self._parts)

    def _unpack_latent(self, flat: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        parts = flat.split([site.numel for site in self._sites], -1)
        for site, part in zip(self._sites, parts, strict=True):
            value = part.reshape(flat.shape[:-1] + site.unconstrained_shape)
            yield {"name": site.name, "site": site}, value


class _FlowTransform(Transform):
    """From the noise of all parts to the flat unconstrained latents."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, samplers: list[Any]) -> None:
        super().__init__()
        self._samplers = samplers

    def _pieces(self, x: Tensor) -> Iterator[tuple[Any, Tensor]]:
        sizes = [sampler.generator.output_dim for sampler in self._samplers]
        return zip(self._samplers, x.split(sizes, -1), strict=True)

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([s.preconditioner(s.generator(z)) for s, z in self._pieces(x)], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = [s.generator.inverse(s.preconditioner.inverse(u)) for s, u in self._pieces(y)]
        return torch.cat(parts, -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = [s.distribution().given(z).half_log_det() for s, z in self._pieces(x)]
        return torch.stack(parts).sum(0)
