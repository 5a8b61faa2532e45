r"""
Matrix-multiplication generators: millions of latents from products of small matrices.

References

- `Kernel Implicit Variational Inference`, J. Shi, S. Sun, J. Zhu, ICLR 2018. Algorithm 1.
- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendix D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pyro_implicit._checks import check_number
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.layout import Shape, plan_mmnn
from pyro_implicit.generators.matmul_chain import MatMulChain, example_noise
from pyro_implicit.generators.matmul_linearisation import MatMulLinearisation
from pyro_implicit.ops.linearisation import Linearisation

__all__ = ["MMNN"]


class MMNN(Generator):
    r"""
    A matrix-multiplication network: a noise matrix is scaled up, and its entries are the latents.

    Layers are :math:`\phi((U X + B_1) V + B_2)`, the last one linear (Shi, Sun and Zhu 2018,
    Algorithm 1).

    A layer from ``a x b`` to ``a' x b'`` has ``a a' + a' b + b b' + a' b'`` parameters where a
    dense one has ``a b a' b'``. The output's spare entries, if any, are cut off; no latent is
    generated twice.

    Sources:

    - `Kernel Implicit Variational Inference`, Shi, Sun and Zhu, ICLR 2018.
    - `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS 2023.

    :param int output_dim: latents ``m``.
    :param noise_shape: rows and columns of the noise; by default about one noise entry for ten
        latents, and for up to 256 latents one for each, whatever the budget.
    :param hidden_shapes: shapes of the hidden layers; by default one square layer that the budget
        allows. ``MMNN(44426, noise_shape=(65, 65), hidden_shapes=[(250, 250)],
        output_shape=(350, 127))`` is the network of Uppal et al. 2023 for LeNet.
    :param output_shape: by default nearly square.
    :param float budget: variational parameters per latent, greater than 1.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: root mean square of the outputs at initialisation.
    :raises ArgumentError: for a budget of at most 1, an empty shape or an unknown activation.
    :raises ShapeError: if ``output_shape`` is too small.
    """

    def __init__(
        self,
        output_dim: int,
        *,
        noise_shape: Shape | None = None,
        hidden_shapes: Sequence[Shape] | None = None,
        output_shape: Shape | None = None,
        budget: float = 2.0,
        activation: str = "elu",
        init_scale: float = 1.0,
    ) -> None:
        init_scale = check_number("init_scale", init_scale, above=0)
        shapes = plan_mmnn(output_dim, budget, noise_shape, hidden_shapes, output_shape)
        super().__init__(shapes[0], output_dim)
        self.activation = activation
        self.init_scale = init_scale
        self.chain = MatMulChain(shapes, activation, linear_end=True, gain=self.init_scale)
        self.chain.normalise(example_noise(shapes[0]))

    @property
    def shapes(self) -> list[Shape]:
        """Shapes from the noise to the output."""
        return list(self.chain.shapes)

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        out, _ = self.chain.run(z)
        return out.flatten(-2)[..., : self.output_dim]

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        out, layers = self.chain.run(z)
        value = out.flatten(-2)[..., : self.output_dim]
        branch = (slice(None), layers, out.shape[-2:], self.output_dim)
        return MatMulLinearisation(value, self.noise_shape, [], [branch])

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        return self.linearise(z).jacobian()

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        shapes = [list(shape) for shape in self.shapes]
        return {
            "type": "MMNN",
            "output_dim": self.output_dim,
            "noise_shape": shapes[0],
            "hidden_shapes": shapes[1:-1],
            "output_shape": shapes[-1],
            "activation": self.activation,
            "init_scale": self.init_scale,
        }
