"""A fitted guide itself as the prior of the next data."""

# Shape legend: d entries of all noise, m unconstrained latents, S draws.
from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_implicit._checks import check_model, check_number, check_tensor
from pyro_implicit.bayesian.met_sites import check_met
from pyro_implicit.exceptions import GuideError, ShapeError, SiteError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.flat_latents import by_site

__all__ = ["GuidePrior", "check_all_rows"]

_NOISE = "prior_noise"


class GuidePrior(nn.Module):
    r"""
    An implicit posterior as a prior, whole: the latents are what its network makes of noise.

    ``prior(model)`` is the model with one latent in place of the guide's, the guide's noise, which
    is standard normal; the sites of the guide are deterministic functions of it. So nobody has to
    evaluate the density of the guide, and every guide, objective and chain takes the model. Nothing
    is lost, neither modes nor bent ridges; what a guide has no draws of can never come back,
    whatever the new data say.

    Each update puts one more network between noise and latents: ``n`` updates cost ``n`` networks.

    Example::

        prior = GuidePrior(guide)                         # fitted to yesterday's data
        model_today = prior(model)
        guide_today = HyperNetworkGuide(model_today)
        fit(model_today, guide_today, x, y)               # today's alone
        predict(model_today, guide_today, x, num_samples=100)

    The guide is copied, without gradients: training it further changes nothing here.

    :param ImplicitGuide guide: a guide that is built.
    :param float widen: the deviation of the noise, 1 in the guide: above 1 for what drifts, so that
        the old data count less and less.
    :raises ArgumentError: for a ``widen`` that is no positive number.
    :raises GuideError: for any other guide, and a conditional one.
    :raises SiteError: for latents in a plate that showed some of its rows.
    :raises StateError: for a guide that is not built yet.
    """

    def __init__(self, guide: ImplicitGuide, *, widen: float = 1.0) -> None:
        super().__init__()
        samplers: Any = copy.deepcopy(_checked(guide).samplers)
        self._samplers = samplers.requires_grad_(False).eval()
        self._sites = tuple(guide.sites)
        self._widen = check_number("widen", widen, above=0)
        for site in self._sites:
            check_all_rows(site)
        #: name of the one latent of the new model, another one after each update
        self.noise_name = _next_name(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites that it stands in for."""
        return tuple(site.name for site in self._sites)

    @property
    def noise_dim(self) -> int:
        """Number ``d`` of entries of the noise, output noise included."""
        return sum(sum(sizes) for sizes in self._sizes)

    def forward(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """
        Replaces the priors of a model's sites.

        :param model: the model that the guide was fitted to, or one with the same sites.
        :returns: a model of the latent :attr:`noise_name`, shape ``(d,)``, and of what else the
            model samples. When it is run it raises :class:`SiteError` if it samples none of the
            sites, or one in another shape, and warns once of those that it does not sample.
        :raises ArgumentError: if the model cannot be called.
        """
        return _FromNoise(self)(check_model(model))

    def transform_sample(self, noise: Tensor) -> dict[str, Tensor]:
        """
        Maps draws of the new model's latent to the model's own.

        :param torch.Tensor noise: shape ``(..., d)``.
        :returns: constrained values by site, shape ``(..., *site_shape)``.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: for another size.
        """
        check_tensor("noise", noise, "noise (..., d)")
        if noise.shape[-1:] != (self.noise_dim,):
            raise ShapeError(
                f"noise of shape {tuple(noise.shape)}; expected (..., {self.noise_dim})"
            )
        parts = by_site(self._flat(noise), self._sites)
        batch = noise.shape[:-1]
        return {s.name: s.value(u.reshape(batch + s.unconstrained_shape)) for s, u in parts}

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        """Of each part, the number of entries of the generator's noise and of the output noise."""
        return [
            (s.generator.noise_dim, s.generator.output_dim if _has_output_noise(s) else 0)
            for s in self._samplers
        ]

    def _flat(self, noise: Tensor) -> Tensor:
        """The unconstrained latents, shape ``(..., m)``, of noise ``(..., d)``."""
        return torch.cat(list(self._parts(noise)), -1)

    def _parts(self, noise: Tensor) -> Iterator[Tensor]:
        ends = noise.split([sum(sizes) for sizes in self._sizes], -1)
        for sampler, sizes, part in zip(self._samplers, self._sizes, ends, strict=True):
            z, output = part.split(sizes, -1)
            mean = sampler.generator(z.reshape(*z.shape[:-1], *sampler.generator.noise_shape))
            if sizes[1]:
                mean = mean + sampler.scale * output
            yield sampler.preconditioner(mean)

    def _values(self, noise: Tensor) -> dict[str, Tensor]:
        """Constrained values as seen from the plates, see :meth:`LatentSite.unpack`."""
        return {s.name: s.value(s.unpack(u)) for s, u in by_site(self._flat(noise), self._sites)}

    def _draw(self) -> dict[str, Tensor]:
        loc = self._samplers[0].preconditioner.loc
        zeros = loc.new_zeros(self.noise_dim)
        scale = torch.full_like(zeros, self._widen)
        base = dist.Normal(zeros, scale, validate_args=False).to_event(1)
        return self._values(pyro.sample(self.noise_name, base))  # theory/after.md (guide-prior)

    def extra_repr(self) -> str:
        """What it makes of what, for ``repr``."""
        return f"{len(self._sites)} sites of {self.noise_dim} entries of noise"


_CALLER = 4  # frames up from a check: the exit of the handler, and Pyro's wrapper of a function


class _FromNoise(Messenger):
    """Makes the sites of a guide deterministic functions of its noise."""

    def __init__(self, prior: GuidePrior) -> None:
        super().__init__()
        self._prior, self._is_checked = prior, False
        self._values: dict[str, Tensor] = {}
        self._seen: list[str] = []

    def __enter__(self) -> Any:
        self._seen, self._values = [], self._prior._draw()
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        self._values = {}
        if kind is None and not self._is_checked:
            remedy = "If that is meant, fit a guide of the sites that both models have."
            check_met(self._prior.names, self._seen, remedy, _CALLER)
            self._is_checked = True  # a branch may leave some out in another run

    def _pyro_sample(self, msg: Any) -> None:
        value = self._values.get(msg["name"])
        if value is None:
            return
        fn: Any = msg["fn"]
        _check_shape(msg["name"], fn, value)
        self._seen.append(msg["name"])
        msg["fn"] = dist.Delta(value, event_dim=fn.event_dim, validate_args=False).mask(False)
        msg["value"], msg["is_observed"] = value, True
        msg["infer"] = {**(msg["infer"] or {}), "_deterministic": True}


def _check_shape(name: str, fn: Any, value: Tensor) -> None:
    expected = tuple(fn.batch_shape + fn.event_shape)
    found = tuple(value.shape)
    inner = found[max(len(found) - len(expected), 0) :]
    if len(inner) < len(expected) or any(
        e not in (1, f) for f, e in zip(inner, expected, strict=True)
    ):
        raise SiteError(
            f"site {name!r} has batch shape {tuple(fn.batch_shape)} and event shape "
            f"{tuple(fn.event_shape)} in this model; the guide's values have shape {found}. Use "
            "the model that the guide was fitted to, with plates that show all of their rows."
        )


def check_all_rows(site: LatentSite) -> None:
    """
    Refuses latents of rows that were not all seen.

    :param LatentSite site: a latent of a guide.
    :raises SiteError: if a plate around it showed some of its rows.
    """
    for frame in site.frames:
        if frame.size != frame.full_size:
            raise SiteError(
                f"latent {site.name!r} is in plate {frame.name!r}, which showed {frame.size} of "
                f"its {frame.full_size} rows: latents of rows are not carried on. Make the prior "
                "of those that all data share."
            )


def _has_output_noise(sampler: Any) -> bool:
    scale = sampler.scale
    return isinstance(scale, Tensor) or scale > 0


def _next_name(taken: tuple[str, ...]) -> str:
    """A name for noise that no prior before this one can have taken."""
    numbers = [re.fullmatch(rf"{_NOISE}(?:_(\d+))?", name) for name in taken]
    last = max((int(found[1] or 1) for found in numbers if found), default=0)
    return _NOISE if last == 0 else f"{_NOISE}_{last + 1}"


def _checked(guide: Any) -> ImplicitGuide:
    if not isinstance(guide, ImplicitGuide) or isinstance(guide, ConditionalGuide):
        raise GuideError(
            "a guide as a prior is an implicit one of this package with one distribution of the "
            f"latents, found {type(guide).__name__}. By their moments others are carried on too: "
            "prior_from(guide, form='low-rank')."
        )
    return guide
