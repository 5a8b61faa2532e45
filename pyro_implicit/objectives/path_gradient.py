r"""
The gradient of an entropy along the path of the draws alone.

References

- `Sticking the Landing: Simple, Lower-Variance Gradient Estimators for Variational Inference`,
  G. Roeder, Y. Wu, D. Duvenaud, NeurIPS 2017.
- `Gradients should stay on Path: Better Estimators of the Reverse- and Forward KL Divergence for
  Normalizing Flows`, L. Vaitl, K. A. Nicoli, S. Nakajima, P. Kessel, Machine Learning: Science and
  Technology, 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.objectives.implicit_site import ImplicitSite

__all__ = ["along_path", "through_draws"]


def through_draws(entropy: Tensor, draws: Tensor, score: Tensor) -> Tensor:
    """
    Give an entropy's estimate a gradient through its draws alone.

    :param torch.Tensor entropy: at each draw, shape ``batch``.
    :param torch.Tensor draws: shape ``(*batch, m)``.
    :param torch.Tensor score: the derivative of their log-density, held fixed, ``(*batch, m)``.
    :returns: the same numbers, shape ``batch``.
    """
    # theory/scores.md (entropy-path-gradient), theory/linearised.md (entropy-along-path)
    return entropy.detach() - ((draws - draws.detach()) * score).sum(-1)


def along_path(site: ImplicitSite, entropy: Tensor) -> Tensor:
    r"""
    Give an entropy's estimate the gradient of least noise, where that is cheap.

    The entropy at a draw is :math:`-\log q_\phi(\theta_\phi(z))`, and the mean of
    :math:`\partial_\phi \log q_\phi(\theta)` at fixed draws is zero: leaving it out gives the same
    gradient in the mean (Roeder, Wu and Duvenaud 2017). What is left vanishes together with that of
    the log-joint density, draw by draw, where the guide is the posterior.

    Source: `Sticking the Landing: Simple, Lower-Variance Gradient Estimators for Variational
    Inference`, Roeder, Wu and Duvenaud, NeurIPS 2017.

    :param ImplicitSite site: the site.
    :param torch.Tensor entropy: minus its log-density at each draw, shape ``(*batch)``.
    :returns: the same numbers; with a gradient through the draws alone if the site's distribution
        can tell the score of its draws, else as they came.
    """
    fn = site.distribution
    score = fn.score_of_mean()
    if score is None or not torch.is_grad_enabled():
        return entropy
    return through_draws(entropy, fn.linearisation().value, score)
