"""What moves draws along a direction and leaves all else to its own gradient."""

from __future__ import annotations

from torch import Tensor

from pyro_implicit.objectives.particles.joint_draws import JointDraws
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch

__all__ = ["follow"]


def follow(
    batch: ParticleBatch, draws: JointDraws, value: Tensor, direction: Tensor, score: Tensor
) -> Tensor:
    r"""
    A number with a gradient of our choice.

    The draws of implicit sites get the gradient ``direction``, divided by their number. Explicit
    sites of the guide and parameters of the model get that of the mean of ``log p(y, x) - log q``
    with the implicit draws held fixed, which is theirs in an evidence bound.

    :param ParticleBatch batch: ``n`` draws, all of an evaluation.
    :param JointDraws draws: of the batch.
    :param torch.Tensor value: the number itself, shape ``()``.
    :param torch.Tensor direction: upwards, shape ``(n, m)``.
    :param torch.Tensor score: of the posterior at the draws, shape ``(n, m)``: what the log-joint
        would add to their gradient.
    :returns: shape ``()``.
    """
    towards = ((direction - score).detach() * draws.points).sum(-1)
    everything = (towards + batch.log_joint + batch.explicit_entropy).mean()
    return value.detach() + (everything - everything.detach())
