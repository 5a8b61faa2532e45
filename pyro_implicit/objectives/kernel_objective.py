"""What objectives that compare draws by a kernel have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.objectives.particles.joint_draws import JointDraws
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.ops.kernels import gaussian_kernel, inverse_multiquadric_kernel

__all__ = ["KernelObjective"]


class KernelObjective(ParticleObjective):
    """
    An objective that compares all draws with each other by a kernel.

    :param int num_particles: draws, at least 2.
    :param str kernel: one of :attr:`kernels`.
    :param float bandwidth: width of the kernel in units of the median distance of the draws.
    :param float width: width of the kernel itself, in the coordinates of the generator; None:
        ``bandwidth`` tells it.
    :param options: all others of :class:`~pyro_implicit.ParticleObjective`.
    :raises ArgumentError: for values outside of these.
    """

    pools = True
    needs_score = True
    #: the kernels there are
    kernels: ClassVar[tuple[str, ...]] = ("gaussian", "imq")

    def __init__(
        self,
        num_particles: int,
        *,
        kernel: str,
        bandwidth: float,
        width: float | None,
        **options: Any,
    ) -> None:
        check_count("num_particles", num_particles, 2)
        super().__init__(num_particles, **options)
        self.kernel = check_choice("kernel", kernel, self.kernels)
        self.bandwidth = check_number("bandwidth", bandwidth, above=0)
        self.width = None if width is None else check_number("width", width, above=0)

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "kernel": self.kernel,
            "bandwidth": self.bandwidth,
            "width": self.width,
        }

    def _draws_of(self, batch: ParticleBatch) -> tuple[JointDraws, Tensor]:
        """
        The draws as points, and the width of the kernel between them.

        :param ParticleBatch batch: all draws.
        :returns: the draws, and a width of shape ``()`` without a gradient.
        :raises SiteError: if a site has a weight.
        """
        draws = JointDraws(batch, type(self).__name__)
        return draws, draws.bandwidth(self.width, self.bandwidth)

    def _between(self, points: Tensor, width: Tensor) -> Tensor:
        """
        The kernel between all points.

        :param torch.Tensor points: shape ``(n, m)``.
        :param torch.Tensor width: shape ``()``.
        :returns: shape ``(n, n)``.
        """
        gaussian = self.kernel == "gaussian"
        return (gaussian_kernel if gaussian else inverse_multiquadric_kernel)(points, points, width)
