"""What a fitted guide makes of its noise: the map from noise to the sites of the model."""

# Shape legend: d entries of all noise, m unconstrained latents.
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_tensor
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.handlers.flat_latents import by_site
from pyro_implicit.ops.logdet import is_zero

__all__ = ["NoiseMap"]

_Self = TypeVar("_Self", bound="NoiseMap")


class NoiseMap(nn.Module):
    """
    A copy of a guide's networks, without gradients: training the guide changes nothing here.

    :param ImplicitGuide guide: a guide that is built, not conditional.
    :raises StateError: for one that is not built yet.
    """

    def __init__(self, guide: ImplicitGuide) -> None:
        super().__init__()
        samplers: Any = copy.deepcopy(guide.samplers)
        self.samplers = samplers.requires_grad_(False).eval()
        self.sites = tuple(map(copy.copy, guide.sites))  # whose supports are moved with this

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Moves the bounds of supports, too: draws are mapped on them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for site in self.sites:
            site.move(fn)
        return self

    @property
    def like(self) -> Tensor:
        """A tensor of the type and on the device of the noise."""
        loc: Tensor = self.samplers[0].preconditioner.loc
        return loc

    @property
    def noise_dim(self) -> int:
        """Number ``d`` of entries of the noise, output noise included."""
        return sum(sum(sizes) for sizes in self._sizes)

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        """Of each part, the number of entries of the generator's noise and of the output noise."""
        return [
            (s.generator.noise_dim, 0 if is_zero(s.scale) else s.generator.output_dim)
            for s in self.samplers
        ]

    def pieces(self, noise: Tensor) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """
        Divides noise between the parts of the guide.

        :param torch.Tensor noise: shape ``(..., d)``.
        :returns: each part with the generator's noise and the output noise.
        """
        sizes = self._sizes
        parts = noise.split([sum(both) for both in sizes], -1)
        for sampler, both, part in zip(self.samplers, sizes, parts, strict=True):
            z, output = part.split(both, -1)
            yield sampler, z.reshape(*z.shape[:-1], *sampler.generator.noise_shape), output

    def flat(self, noise: Tensor) -> Tensor:
        """
        The unconstrained latents.

        :param torch.Tensor noise: shape ``(..., d)``.
        :returns: shape ``(..., m)``.
        """
        made = []
        for sampler, z, output in self.pieces(noise):
            mean = sampler.generator(z)
            if output.shape[-1]:
                mean = mean + sampler.scale * output
            made.append(sampler.preconditioner(mean))
        return torch.cat(made, -1)

    def values(self, noise: Tensor) -> dict[str, Tensor]:
        """
        The latents as the sites of a model have them.

        :param torch.Tensor noise: shape ``(*batch, d)``, the batch as seen from the plates.
        :returns: constrained values by site, of the shapes of :meth:`LatentSite.unpack`.
        """
        return {s.name: s.value(s.unpack(u)) for s, u in by_site(self.flat(noise), self.sites)}

    def transform_sample(self, noise: Tensor, site: str) -> dict[str, Tensor]:
        """
        The latents of draws.

        :param torch.Tensor noise: shape ``(..., d)``.
        :param str site: name of the site whose draws the noise is, for the messages.
        :returns: constrained values by site, shape ``(..., *site_shape)``.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: for another size.
        """
        d = self.noise_dim
        check_tensor("noise", noise, f"a tensor (..., {d}), such as torch.randn(1000, {d})")
        if noise.shape[-1:] != (d,):
            raise ShapeError(
                f"noise of shape {tuple(noise.shape)}; expected (..., {d}), such as "
                f"torch.randn(1000, {d}), or draws of the site {site!r}."
            )
        parts, batch = by_site(self.flat(noise), self.sites), noise.shape[:-1]
        return {s.name: s.value(u.reshape(batch + s.unconstrained_shape)) for s, u in parts}
