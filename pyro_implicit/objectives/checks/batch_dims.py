"""Refuses batch dimensions that no plate declares: a sum over them counts data several times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyro.poutine.util import site_is_factor

from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import SiteError

__all__ = ["PARTICLE_PLATE", "check_batch_dims", "is_vectorised"]

#: how Pyro's objectives name the plate of vectorised particles
PARTICLE_PLATE = "num_particles_vectorized"
_SIZE_OF_UNSIZED_PLATE = -1  # what Pyro writes for pyro.plate("data")


def is_vectorised(nodes: Iterable[Any]) -> bool:
    """
    Whether a run of a model was in the plate of the particles.

    :param nodes: the sample sites of a model.
    :returns: whether one of them is in the plate of the particles.
    """
    return any(f.name == PARTICLE_PLATE for node in nodes for f in node["cond_indep_stack"])


def check_batch_dims(sides: Mapping[str, Iterable[Any]]) -> None:
    """
    Refuses batch dimensions that no plate declares.

    It looks at shapes alone: it costs nothing, and
    waits for no device.

    Pyro leaves the dimensions to the left of its plates to enumeration. There is none here, so that
    a dimension there is always a mistake: with ``S`` vectorised particles a latent has shape
    ``(S, 1, ...)``, and whatever does not line up with the plates (``x @ w.unsqueeze(-1)``) makes a
    second ``S``, over which every datum would be counted ``S`` times.

    :param dict sides: the sample sites of ``"model"`` and ``"guide"``. Those without a log-density
        are passed over, but for implicit ones of a guide, and so is ``pyro.deterministic``, which
        adds nothing.
    :raises SiteError: if a log-density has a dimension, not of size 1, that is that of no plate. A
        plate without a size has dimensions of any.
    """
    for side, nodes in sides.items():
        _check_side(side, nodes)


def _check_side(side: str, nodes: Iterable[Any]) -> None:
    for node in nodes:
        if node["infer"].get("_deterministic"):
            continue
        if "log_prob" in node:
            shape = tuple(node["log_prob"].shape)
        elif isinstance(node["fn"], ImplicitDistribution) and side == "guide":
            shape = tuple(node["fn"].batch_shape)
        else:
            continue
        sizes = {f.dim: f.size for f in node["cond_indep_stack"] if f.vectorized}
        for dim in range(-len(shape), 0):
            if shape[dim] != 1 and sizes.get(dim, 1) not in (shape[dim], _SIZE_OF_UNSIZED_PLATE):
                raise SiteError(_message(side, node, shape, dim))


def _message(side: str, node: Any, shape: tuple[int, ...], dim: int) -> str:
    frames = sorted((f for f in node["cond_indep_stack"] if f.vectorized), key=lambda f: f.dim)
    plates = ["the particles" if f.name == PARTICLE_PLATE else f"plate {f.name!r}" for f in frames]
    sizes = ["of any size" if f.size == _SIZE_OF_UNSIZED_PLATE else str(f.size) for f in frames]
    pairs = zip(plates, sizes, frames, strict=True)
    declared = [f"{plate} ({size}) at {frame.dim}" for plate, size, frame in pairs]
    what = "pyro.factor" if site_is_factor(node) else "site"
    return (
        f"{what} {node['name']!r} of the {side} has log-densities of shape {shape}, and no plate "
        f"declares their dimension {dim} (size {shape[dim]}): they would count {shape[dim]} times. "
        f"Declared: {', '.join(declared) or 'nothing'}. {_remedy(node, frames, shape, dim)}"
    )


def _remedy(node: Any, frames: list[Any], shape: tuple[int, ...], dim: int) -> str:
    factor = site_is_factor(node)
    particles = next((f for f in frames if f.name == PARTICLE_PLATE), None)
    if particles is not None and dim < particles.dim:
        batch = (particles.size,) + (1,) * (-particles.dim - 1)
        return (
            f"With vectorised particles latents outside of all plates come with batch shape "
            f"{batch}, to line up with the data by themselves. Write a + x, not a.unsqueeze(-1) + "
            "x; (w * x).sum(-1), not x @ w.unsqueeze(-1); (x.unsqueeze(-2) @ w).squeeze(-2), not "
            "x @ w. Or loop: vectorize_particles=False."
        )
    if particles is not None and shape[dim] == particles.size:
        return (
            f"These are the particles, which belong at dimension {particles.dim}: keep the "
            "dimensions of the plates, .sum(-1, keepdim=True) in place of .sum(-1), and do not "
            "squeeze latents. Or loop: vectorize_particles=False."
        )
    if factor:
        return (
            "Sum over it, log_factor.sum(dim, keepdim=True), or write the factor inside a "
            f"`with pyro.plate(name, {shape[dim]}, dim={dim})`."
        )
    return (
        f"Write .to_event({-dim}) if one datum has these entries, a `with pyro.plate(name, "
        f"{shape[dim]}, dim={dim})` around the site if they are data, or .squeeze(-1) where a "
        "column of shape (N, 1) met data of shape (N,)."
    )
