"""Generators of StochMan's layers, which push their own Jacobians forward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pyro_implicit.exceptions import ArgumentError, LayerError
from pyro_implicit.generators.module import ModuleGenerator

__all__ = ["NnjGenerator", "pushes_jacobians"]

#: by which a layer of StochMan multiplies a Jacobian by its own
_PUSHING_METHOD = "_jacobian_wrt_input_mult_left_vec"


class NnjGenerator(ModuleGenerator):
    """
    A ``stochman.nnj.Sequential`` as a generator, differentiated by its own layers.

    Value and Jacobian come from one forward pass, in a third or a quarter of the time that
    ``torch.func`` takes; where a network is not a perceptron (convolutions, transposed ones,
    upsampling) nothing else here does it as fast. :class:`~pyro_implicit.generators.MLPGenerator`
    is at least as fast for perceptrons, and is saved with a guide by value, which this one is not::

        from stochman import nnj

        net = nnj.Sequential(nnj.Linear(4, 32), nnj.ELU(), nnj.Linear(32, num_latents))
        guide = HyperNetworkGuide(model, generator=net)

    A guide takes the module itself, as here, and wraps it. Products with the Jacobian
    (:meth:`linearise`) come from ``torch.func``: StochMan's layers push whole Jacobians, and not
    all of them a few directions.

    Source: `StochMan`, Detlefsen et al., 2021.

    :param torch.nn.Module module: maps ``(n, *noise_shape)`` to ``(n, output_dim)``.
    :param noise_shape: shape of one noise.
    :param int output_dim: number of outputs.
    :raises ArgumentError: unless it is a ``stochman.nnj.Sequential``.
    :raises LayerError: for a layer without a forward Jacobian, or whose one fails.
    """

    def __init__(self, module: nn.Module, noise_shape: Sequence[int], output_dim: int) -> None:
        from stochman import nnj

        super().__init__(module, noise_shape, output_dim)
        if not isinstance(module, nnj.Sequential):
            raise ArgumentError(
                f"module is a {type(module).__name__}; expected a stochman.nnj.Sequential. Any "
                "other module is a ModuleGenerator(module, noise_shape, output_dim)."
            )
        for name, layer in module.named_children():
            if not hasattr(layer, _PUSHING_METHOD):
                raise LayerError(
                    f"layer {name!r} of the module, a {type(layer).__name__}, has no forward "
                    "Jacobian; use a layer of stochman.nnj, not nested, or ModuleGenerator(module, "
                    "noise_shape, output_dim), which needs none."
                )

    def jacobian(self, z: Tensor) -> Tensor:
        """
        See :meth:`Generator.jacobian`.

        :raises LayerError: if the Jacobian of a layer fails, as that of ``nnj.MaxPool2d`` does.
        """
        self.check_noise(z)
        batch = z.shape[: z.dim() - len(self.noise_shape)]
        try:
            _, jacobian = self.module(z.reshape(-1, *self.noise_shape), jacobian=True)
        except IndexError as error:
            raise LayerError(
                f"StochMan's own Jacobian of this module fails ({error}); use ModuleGenerator("
                "module, noise_shape, output_dim), which does not need it."
            ) from error
        flat: Tensor = jacobian.reshape(*batch, self.output_dim, self.noise_dim)
        return flat


def pushes_jacobians(module: nn.Module) -> bool:
    """
    Whether a module is of StochMan's layers alone, and their forward Jacobians work.

    :param torch.nn.Module module: any; StochMan is not imported to look at it.
    :returns: whether :class:`NnjGenerator` takes it.
    """
    kinds = [type(module), *map(type, module.children())]
    if type(module).__name__ != "Sequential" or kinds[0].__module__ != "stochman.nnj":
        return False
    return all(hasattr(kind, _PUSHING_METHOD) and "Pool" not in kind.__name__ for kind in kinds[1:])
