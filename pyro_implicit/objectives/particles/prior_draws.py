"""Draws of a model's own prior, for objectives that compare draws, without its likelihood."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_implicit.exceptions import GuideError, SiteError
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["PriorDraws"]

_PRIOR_PLATE = "num_prior_draws_vectorized"


class PriorDraws:
    """
    The prior of one model at one set of arguments.

    The model runs only until the latents that are asked for are drawn: a network behind them is
    not evaluated. Draws carry no gradient.

    :param model: the model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param nesting: number of plate dimensions, to draw all at once in a plate outside of them; None
        to run the model once per draw.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        nesting: int | None,
    ) -> None:
        self._model, self._args, self._kwargs = model, args, kwargs
        self._nesting = nesting

    def draw(self, site: ImplicitSite, num_samples: int) -> Tensor:
        """
        Draws the latents of one implicit site from the prior.

        :param ImplicitSite site: an implicit site of the guide.
        :param int num_samples: number ``n`` of draws.
        :returns: draws of the prior of its latents, in the coordinates of its value, shape
            ``(n, *plates, m)``.
        :raises SiteError: if values of the prior do not fit the site, or the prior is improper.
        """
        if self._nesting is None:
            runs = [self._run(site.latents) for _ in range(num_samples)]
            values = {name: torch.stack([run[name] for run in runs]) for name in site.latents}
        else:
            with poutine.block():  # a plate is a site itself
                plate = pyro.plate(_PRIOR_PLATE, num_samples, dim=-self._nesting - 1)
            values = self._run(site.latents, plate)
        if site.pack is not None:
            return site.pack(values, num_samples)
        # of one particle by itself if looped, else particles are the first dimension
        one = site.value.shape if self._nesting is None else site.value.shape[1:]
        return _as_drawn(site, values, torch.Size((num_samples, *one)))

    def check(self, particle: Particle) -> None:
        """
        Refuses what comparing one site with its prior would get wrong.

        It does so only with Pyro's validation on, as it runs the model.

        :raises GuideError: if the prior of one implicit site's latents depends on latents outside
            of it: the KL terms of the sites do not then add up to that of the guide.
        :raises SiteError: if model and guide weigh or mask a latent differently.
        """
        if not is_validation_enabled():
            return
        for site in particle.implicit.values():
            self._check_weights(site, particle)
        latents = set(particle.all_latents)
        for site in particle.implicit.values():
            if latents - set(site.latents):
                self._check_independent(site)

    def _check_weights(self, site: ImplicitSite, particle: Particle) -> None:
        mine = particle.weight(site.name)
        for name in site.latents:
            node = particle.model.nodes[name]
            factors = [node["scale"]] + ([] if node["mask"] is None else [node["mask"]])
            theirs = torch.stack([torch.as_tensor(f).double().mean().cpu() for f in factors]).prod()
            if not torch.allclose(torch.as_tensor(mine).double().cpu(), theirs):
                raise SiteError(
                    f"latent site {name!r} has weight {float(theirs):.4g} in the model (a minibatch"
                    f", poutine.scale or a mask) and {float(mine):.4g} in the guide; an objective "
                    "that compares draws of both cannot tell them apart. Use contrast='adaptive'."
                )

    def _check_independent(self, site: ImplicitSite) -> None:
        first = self._trace(site.latents, {})
        values: dict[str, Any] = {name: first.nodes[name]["value"] for name in site.latents}
        second = self._trace(site.latents, values)
        for name in site.latents:
            fns: list[Any] = [trace.nodes[name]["fn"] for trace in (first, second)]
            try:
                a, b = (fn.log_prob(values[name]) for fn in fns)
            except NotImplementedError:  # a prior that can only be drawn from
                continue
            if a.shape != b.shape or not torch.allclose(a, b):
                raise GuideError(
                    f"the prior of {name!r} depends on latents outside of implicit site "
                    f"{site.name!r}, so that its KL term cannot be had by comparing its draws with "
                    "the prior's. Let one guide generate them together (factorized=False, no other "
                    "guide for them), or use contrast='adaptive'."
                )

    @torch.no_grad()
    def _run(self, names: Collection[str], plate: Any = None) -> dict[str, Tensor]:
        """One value of each latent, from a run that ends when all are drawn."""
        collect = _Collect(names)
        with poutine.block(), collect, plate or nullcontext(), _until_found():
            self._model(*self._args, **self._kwargs)
        return collect.found

    @torch.no_grad()
    def _trace(self, names: Collection[str], values: dict[str, Tensor]) -> poutine.Trace:
        """The trace of such a run, some latents given."""
        with poutine.block(), poutine.trace() as tracer, poutine.condition(data=values):
            with _Collect(names), _until_found():
                self._model(*self._args, **self._kwargs)
        return tracer.trace


class _Found(Exception):
    """All that a run was for has been drawn."""


class _until_found:
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, *_: Any) -> bool:
        return kind is _Found


class _Collect(Messenger):
    """Keeps the values of some sites, and ends the run with the last."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._missing = set(names)
        self.found: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and _is_improper(msg["fn"]):
            raise SiteError(
                f"the prior of latent site {msg['name']!r} is improper: nobody can draw from it. "
                "Give it a proper prior, or use contrast='adaptive'."
            )

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self._missing:
            self.found[msg["name"]] = msg["value"]
            self._missing.discard(msg["name"])
            if not self._missing:
                raise _Found


def _is_improper(fn: Any) -> bool:
    while not isinstance(fn, dist.ImproperUniform) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)


def _as_drawn(site: ImplicitSite, values: dict[str, Tensor], shape: torch.Size) -> Tensor:
    """Prior draws of a site that is the one latent itself."""
    if site.latents != (site.name,) or values[site.name].numel() != shape.numel():
        found = {name: tuple(value.shape) for name, value in values.items()}
        raise SiteError(
            f"implicit site {site.name!r} has draws of shape {tuple(shape)}, prior draws have "
            f"{found}. Make the model's site a vector of the same size, or tell sample_implicit by "
            "pack=... how the latents are laid out."
        )
    return values[site.name].reshape(shape)
