"""A scene of coloured discs in the plane, seen exactly along rays from cameras around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Discs", "Views", "cameras", "made_up_discs", "seen", "views"]


@dataclass(frozen=True)
class Discs:
    """
    Discs of one density, over each other or not.

    :param torch.Tensor centres: ``(discs, 2)``.
    :param torch.Tensor radii: ``(discs,)``.
    :param torch.Tensor colours: red, green and blue, ``(discs, 3)``.
    :param float density: of each, by unit of length.
    """

    centres: Tensor
    radii: Tensor
    colours: Tensor
    density: float


@dataclass(frozen=True)
class Views:
    """
    Pixels with their rays.

    :param torch.Tensor rays: origin and direction, ``(pixels, 4)``.
    :param torch.Tensor colours: seen along them, with noise, ``(pixels, 3)``.
    """

    rays: Tensor
    colours: Tensor


def made_up_discs(count: int, density: float) -> Discs:
    """A closed wall of discs around the origin, each of a colour of its own."""
    angles = (torch.arange(count) + torch.rand(())) * (2 * math.pi / count)
    middle = 0.5 + 0.08 * (torch.rand(count) - 0.5)
    centres = middle[:, None] * torch.stack([angles.cos(), angles.sin()], -1)
    radii = 0.5 * math.pi / count * (1.0 + 0.3 * torch.rand(count))
    return Discs(centres, radii, torch.rand(count, 3), density)


def cameras(angles: Tensor, sizes: dict[str, Any]) -> Tensor:
    """
    The rays of cameras that look at the origin.

    :param torch.Tensor angles: where on the circle each camera is.
    :param dict sizes: ``distance`` from the origin, ``pixels`` of each camera and the angle of its
        ``opening``.
    :returns: origins and directions, ``(cameras * pixels, 4)``.
    """
    half = sizes["opening"] / 2
    fan = torch.linspace(-half, half, sizes["pixels"])
    way = (angles[:, None] + math.pi + fan).flatten()
    place = angles.repeat_interleave(len(fan))
    origins = sizes["distance"] * torch.stack([place.cos(), place.sin()], -1)
    return torch.cat([origins, torch.stack([way.cos(), way.sin()], -1)], -1)


def seen(scene: Discs, rays: Tensor) -> Tensor:
    """
    The colour that comes along each ray, on black ground.

    Between the places where a ray enters or leaves a disc nothing changes, so that the integral of
    volume rendering is a sum.

    :param Discs scene: what is looked at.
    :param torch.Tensor rays: origin and direction of length 1, ``(rays, 4)``.
    :returns: colours ``(rays, 3)``.
    """
    origin, way = rays[:, None, :2], rays[:, None, 2:]
    nearest = ((scene.centres - origin) * way).sum(-1)
    aside = (origin + nearest[..., None] * way - scene.centres).square().sum(-1)
    half = (scene.radii.square() - aside).clamp(min=0).sqrt()
    ends = torch.cat([nearest - half, nearest + half], -1).clamp(min=0).sort(-1).values
    length, middle = ends.diff(dim=-1), (ends[:, 1:] + ends[:, :-1]) / 2
    inside = ((middle[..., None] - nearest[:, None]).abs() < half[:, None]).to(rays)
    depth = scene.density * inside.sum(-1) * length
    colour = inside @ scene.colours / inside.sum(-1, keepdim=True).clamp(min=1)
    before = (depth.cumsum(-1) - depth).neg().exp()
    return (before * depth.neg().expm1().neg()).unsqueeze(-2).matmul(colour).squeeze(-2)


def views(scene: Discs, angles: Tensor, sizes: dict[str, Any]) -> Views:
    """
    :param Discs scene: what is looked at.
    :param torch.Tensor angles: where the cameras are.
    :param dict sizes: see :func:`cameras`, and ``noise``, the deviation of a pixel's noise.
    :returns: the pixels of all of them.
    """
    rays = cameras(angles, sizes)
    colours = seen(scene, rays)
    return Views(rays, colours + sizes["noise"] * torch.randn_like(colours))
