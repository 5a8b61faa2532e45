"""Refuses vectorised models in which a draw's density depends on the other draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.poutine.util import site_is_factor
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, SiteError
from pyro_implicit.handlers.errors.value_errors import is_outside_support, refuses_parameter
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.objectives.checks.batch_dims import PARTICLE_PLATE
from pyro_implicit.objectives.particles.particle import Particle

__all__ = [
    "ADVICE_ON_VECTORISATION",
    "blames_vectorisation",
    "check_particles_apart",
    "log_prob_of",
]

ADVICE_ON_VECTORISATION = (
    "Count dimensions from the right and name them: w[..., 0], not w[0]; (w * x).sum(-1), not "
    "x @ w nor w.sum(); softmax(w, -1), not softmax(w, 0); w * x[:, 0], not w * x[:, :1]; "
    "s[..., :, None] * L, not s[:, None] * L; "
    "torch.stack([a, b], -1); and put every batch dimension of a site into a plate or .to_event. "
    'Or leave the model as it is: a LinearisedELBO maps it, vectorize_particles="vmap", and any '
    "objective can loop: vectorize_particles=False."
)


@contextmanager
def blames_vectorisation(single: Callable[[], Any]) -> Iterator[None]:
    """
    Tells which of a vectorised model's errors come of its vectorisation.

    Torch speaks of sizes that no line of the model mentions.

    :param single: the same run with a single draw, made if the vectorised one fails.
    :raises SiteError: if the single one does not fail.
    """
    try:
        yield
    except (ImplicitError, torch.OutOfMemoryError, torch.linalg.LinAlgError):
        raise  # clear, or no matter of shapes
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if refuses_parameter(error) or is_outside_support(error):  # at some draw
            raise
        with unseen_run():
            single()  # if it fails as well, with plainer shapes, that is the error to see
        said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise SiteError(
            "the model runs with one draw, and fails with vectorised particles, where latents have "
            f"a dimension of draws in front ({said}). {ADVICE_ON_VECTORISATION}"
        ) from error


def check_particles_apart(particle: Particle, count: int) -> None:
    r"""
    Refuses vectorised models in which one draw's density depends on another draw.

    The densities of ``S`` vectorised draws are those of ``S`` looped ones only if :math:`\partial
    \log p_s / \partial \theta_t = 0` for draws ``s != t``. A model written for one draw may break
    that without an error: ``w.sum()`` sums over draws, and with as many draws as rows ``w * x[:,
    :1]`` gives each row a draw of its own. Here the densities of every other draw are
    differentiated together, which costs one backward pass of the model; the gradients with respect
    to the rest must vanish, and do so exactly. Data that differ from draw to draw are rows that
    stand where the draws belong.

    :param Particle particle: a vectorised pass, made with gradients.
    :param int count: its draws ``S >= 2``.
    :raises SiteError: naming the site.
    """
    nodes = particle.observed_nodes | particle.latent_nodes
    for name, node in nodes.items():
        if node["is_observed"] and _differs_between_draws(node):
            raise SiteError(
                f"site {name!r} of the model has other data for each of the {count} vectorised "
                "particles: the rows of its data, as many, stand where the particles belong. "
                f"{ADVICE_ON_VECTORISATION}"
            )
    draws = _draws(particle, count)
    for name, node in nodes.items():
        if _mixes(log_prob_of(node), draws, count):
            raise SiteError(
                f"the log-density of site {name!r} of the model at one of the {count} vectorised "
                "particles depends on the latents of the others: the model sums or indexes over "
                f"their dimension, or takes it for that of the rows. {ADVICE_ON_VECTORISATION}"
            )


def log_prob_of(node: Any) -> Tensor:
    """
    The log-densities of a site, if they were computed.

    :param node: of a trace.
    :returns: as they are, or one zero.
    """
    return node["log_prob"] if "log_prob" in node else torch.zeros(())


def _draws(particle: Particle, count: int) -> list[Tensor]:
    """What the guide drew, with the particles in front, where it has gradients."""
    made = particle.implicit_latents
    explicit = [node["value"] for name, node in particle.guide_nodes.items() if name not in made]
    values = [site.value for site in particle.implicit.values()] + explicit
    return [v for v in values if v.requires_grad and v.dim() and len(v) == count]


def _mixes(log_prob: Tensor, draws: list[Tensor], count: int) -> bool:
    """Whether densities of the odd draws move with the even ones."""
    if not draws or not log_prob.requires_grad or log_prob.numel() % count:
        return False
    odd = log_prob.reshape(count, -1)[1::2].sum()
    grads = torch.autograd.grad(odd, draws, retain_graph=True, allow_unused=True)
    even = [g[::2] for g in grads if g is not None]
    return any(bool((g.ne(0) & g.isfinite()).any()) for g in even)


def _differs_between_draws(node: Any) -> bool:
    """Whether a site observes data, not made from latents, that change along the particles."""
    value, fn = node["value"], node["fn"]
    if site_is_factor(node) or node["infer"].get("_deterministic") or value.requires_grad:
        return False
    frames = (f for f in node["cond_indep_stack"] if f.name == PARTICLE_PLATE)
    dim = next((f.dim - fn.event_dim for f in frames), 0)
    if not dim or value.dim() < -dim or value.shape[dim] == 1:
        return False
    return not torch.equal(value, value.narrow(dim, 0, 1).expand_as(value))
