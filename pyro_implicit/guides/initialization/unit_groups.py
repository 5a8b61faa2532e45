r"""
Which entries of the latents are those of exchangeable units, such as a network's hidden ones.

A group of ``n`` units is a set of axes of latent sites, each of ``n`` entries, whose orders change
together without changing the density: of weights that lead to the units, of their biases, of
weights that lead from them. Shapes alone do not tell which: two heads share one hidden layer, a
linear skip has none, priors may differ from unit to unit.

Axes are joined by the density itself. At a point where units 0 and 1 are alike on all axes, it is
even in what makes them unlike on a whole group: mixed second derivatives along two such directions
are zero unless both belong to one group. What is joined so is then tried: the density has to be
the same with two units swapped, and with all of them moved on by one.
"""

# Shape legend: m unconstrained latents, n units.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["UnitGroup", "unit_groups"]

_BLOCKS = (1, 2, 3, 4)  # of units on one axis: the gates of a recurrent layer
_MIN_AXES = 2  # that a hidden unit has: of what leads to it, and from it
_MAX_AXES = 64  # of one size, each of which takes four gradients
_STEP = {torch.float64: 1e-4, torch.float32: 1e-2}  # of differences of gradients
_MIN_RELATIVE_LINK = {torch.float64: 1e-6, torch.float32: 1e-2}
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # relative, of the same density


@dataclass(frozen=True)
class _Axis:
    """A dimension of a site's unconstrained values, of ``blocks`` times ``n`` entries."""

    site: int
    dim: int
    blocks: int


@dataclass(frozen=True)
class UnitGroup:
    """
    Units whose orders change together without changing the density.

    :param int size: their number ``n``.
    :param axes: where their entries are.
    :param shapes: of the unconstrained values of all sites.
    :param flipped: indices of sites that change the sign of a unit together without changing the
        density; empty where none do.
    """

    size: int
    axes: tuple[_Axis, ...]
    shapes: tuple[torch.Size, ...]
    flipped: frozenset[int] = frozenset()

    def places(self, order: Tensor) -> Tensor:
        """
        Where each latent is taken from when the units change their order.

        :param torch.Tensor order: a permutation of ``n`` units.
        :returns: a permutation of the latents, shape ``(m,)``.
        """
        parts, start = [], 0
        for index, shape in enumerate(self.shapes):
            part = torch.arange(start, start + shape.numel(), device="cpu").reshape(shape)
            start += shape.numel()
            for axis in self.axes:
                if axis.site == index:
                    whole = torch.cat([order + block * self.size for block in range(axis.blocks)])
                    part = part.index_select(axis.dim, whole)
            parts.append(part.flatten())
        return torch.cat(parts)

    def swap(self, one: int, other: int) -> Tensor:
        """:meth:`places` of two units that change places."""
        order = torch.arange(self.size, device="cpu")
        order[one], order[other] = other, one
        return self.places(order)

    def signs(self, units: Sequence[int]) -> Tensor:
        """
        Factors of the latents when some units change their signs.

        :param units: their numbers.
        :returns: 1 or -1, shape ``(m,)``.
        """
        parts = [torch.ones(shape, device="cpu") for shape in self.shapes]
        for axis in self.axes:
            if axis.site in self.flipped:
                for unit in units:
                    for block in range(axis.blocks):
                        parts[axis.site].select(axis.dim, unit + block * self.size).neg_()
        return torch.cat([part.flatten() for part in parts])


def unit_groups(
    density: Callable[[Tensor], Tensor], sites: Sequence[LatentSite], points: Sequence[Tensor]
) -> list[UnitGroup]:
    """
    Finds the groups of exchangeable units of a small network.

    :param density: the log-density of one unconstrained point ``(m,)``, differentiable, and random
        at none.
    :param sites: the latent sites, in order.
    :param points: some points where it is finite, shape ``(m,)``, none of them symmetric.
    :returns: the groups, those of more units first; of axes of one size that are joined, all or
        none. Orders that a group has within itself (of gates, say) are not told.
    """
    shapes = tuple(site.unconstrained_shape for site in sites)
    left = {(index, dim) for index, shape in enumerate(shapes) for dim in range(len(shape))}
    groups: list[UnitGroup] = []
    for size in sorted({shapes[index][dim] for index, dim in left if shapes[index][dim] > 1})[::-1]:
        axes = [
            _Axis(index, dim, shapes[index][dim] // size)
            for index, dim in sorted(left)
            if shapes[index][dim] % size == 0 and shapes[index][dim] // size in _BLOCKS
        ]
        if not _MIN_AXES <= len(axes) <= _MAX_AXES:
            continue
        for joined in _joined(density, UnitGroup(size, tuple(axes), shapes), points):
            group = UnitGroup(size, joined, shapes)
            if len(joined) >= _MIN_AXES and _is_symmetry(density, group, points):
                groups.append(_with_signs(density, group, sites, points))
                left -= {(axis.site, axis.dim) for axis in joined}
    return groups


def _joined(
    density: Callable[[Tensor], Tensor], every: UnitGroup, points: Sequence[Tensor]
) -> list[tuple[_Axis, ...]]:
    """Sets of axes along which the density has mixed second derivatives."""
    count, dtype = len(every.axes), points[0].dtype
    random = torch.Generator("cpu").manual_seed(0)
    links = torch.zeros(count, count, device="cpu")
    for point in points:
        alike = point
        for axis in every.axes:
            alike = 0.5 * (alike + alike[_alone(every, axis).swap(0, 1)])
        ways = torch.stack([_unlike(every, axis, random) for axis in every.axes]).to(point)
        step = _STEP[dtype]
        slopes = [
            (_gradient(density, alike + step * way) - _gradient(density, alike - step * way))
            for way in ways
        ]
        found = (torch.stack(slopes) @ ways.mT).abs().nan_to_num()
        most = found.amax(1).clamp(min=1e-30).sqrt()
        links = torch.maximum(links, (found / (most * most[:, None])).cpu())
    return _components((links > _MIN_RELATIVE_LINK[dtype]), every.axes)


def _unlike(every: UnitGroup, axis: _Axis, random: torch.Generator) -> Tensor:
    """A direction that makes units 0 and 1 unlike on one axis, and keeps them alike on others."""
    sizes = [shape.numel() for shape in every.shapes]
    way = torch.randn(sum(sizes), generator=random, device="cpu")
    for site, part in enumerate(way.split(sizes)):
        part.mul_(float(site == axis.site))
    for other in every.axes:
        if other.site == axis.site and other != axis:
            way = way + way[_alone(every, other).swap(0, 1)]
    return way - way[_alone(every, axis).swap(0, 1)]


def _alone(every: UnitGroup, axis: _Axis) -> UnitGroup:
    return UnitGroup(every.size, (axis,), every.shapes)


def _gradient(density: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = u.detach().requires_grad_(True)
        return torch.autograd.grad(density(leaf), leaf)[0]


def _components(links: Tensor, axes: Sequence[_Axis]) -> list[tuple[_Axis, ...]]:
    """Connected sets of axes, each in order."""
    left, found = list(range(len(axes))), []
    while left:
        joined, border = set(), {left[0]}
        while border:
            joined |= border
            border = {b for a in border for b in left if bool(links[a, b] or links[b, a])} - joined
        left = [one for one in left if one not in joined]
        found.append(tuple(axes[one] for one in sorted(joined)))
    return found


def _is_symmetry(
    density: Callable[[Tensor], Tensor], group: UnitGroup, points: Sequence[Tensor]
) -> bool:
    """Whether two units can be swapped and all moved on, which makes every order."""
    orders = [group.swap(0, 1), group.places(torch.arange(group.size, device="cpu").roll(1))]
    return all(_same(density, u, u[order]) for u in points for order in orders)


def _with_signs(
    density: Callable[[Tensor], Tensor],
    group: UnitGroup,
    sites: Sequence[LatentSite],
    points: Sequence[Tensor],
) -> UnitGroup:
    """The group, with the sites whose signs a unit can change if it can."""
    real = {axis.site for axis in group.axes if _is_real(sites[axis.site].support)}
    flipped = UnitGroup(group.size, group.axes, group.shapes, frozenset(real))
    signs = flipped.signs([0]).to(points[0])
    return flipped if real and all(_same(density, u, signs * u) for u in points) else group


def _is_real(support: constraints.Constraint) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support in (constraints.real, constraints.real_vector)


@torch.no_grad()
def _same(density: Callable[[Tensor], Tensor], one: Tensor, other: Tensor) -> bool:
    first, second = float(density(one)), float(density(other))
    scale = max(1.0, abs(first), abs(second))
    return math.isfinite(first) and abs(first - second) <= _TOLERANCE[one.dtype] * scale
