"""What every generator must do: its derivatives are those of its map, at any batch of noises."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pyro_implicit.generators.base import Generator, generator_class
from pyro_implicit.testing.report import about, apart, expect, expect_close

__all__ = ["check_generator"]


def check_generator(generator: Generator, *, scale: float = 0.1, seed: int = 0) -> None:
    """
    Checks a generator of one's own, in float64 and in evaluation mode.

    Draws have the promised shapes and depend on their own noise alone; Jacobian, products with it
    and log-determinant are those of automatic differentiation; a claim to be bijective stands the
    test of its inverse and of the determinant's sign; what ``config`` tells makes the
    generator anew. The generator itself is left as it is::

        check_generator(MyGenerator(4, 7))

    :param Generator generator: the generator; it needs not be trained.
    :param float scale: output noise for the log-determinant.
    :param int seed: of the noises.
    :raises AssertionError: naming what does not hold.
    """
    generator = copy.deepcopy(generator).double().eval()
    with apart(seed), about(type(generator).__name__):
        _check_rows_apart(generator)
        for batch in ((), (3,), (2, 3)):
            z = torch.randn(*batch, *generator.noise_shape, dtype=torch.float64)
            _check_at(generator, z, torch.Size(batch), scale)
        if generator.is_bijective:
            _check_bijection(generator)
        _check_config(generator)


def _check_at(generator: Generator, z: Tensor, batch: torch.Size, scale: float) -> None:
    m, d = generator.output_dim, generator.noise_dim
    value = generator(z)
    expect(
        value.shape == (*batch, m),
        f"draws at noise {tuple(z.shape)} have shape {tuple(value.shape)}, not {(*batch, m)}",
    )
    rows = z.reshape(-1, *generator.noise_shape)
    expected = torch.stack([_reverse_jacobian(generator, row) for row in rows])
    expected = expected.reshape(*batch, m, d)
    expect_close(generator.jacobian(z), expected, "jacobian against automatic differentiation")
    gram = expected @ expected.mT + scale**2 * torch.eye(m, dtype=z.dtype)
    found = generator.half_log_det(z, scale)
    expect_close(found, 0.5 * torch.logdet(gram), f"half_log_det with scale={scale}")
    products = generator.linearise(z)
    v, u = torch.randn(2, *batch, d, dtype=z.dtype), torch.randn(2, *batch, m, dtype=z.dtype)
    expect_close(products.value, value, "value of linearise")
    expect_close(products.jvp(v), (expected @ v[..., None])[..., 0], "jvp of linearise")
    expect_close(products.vjp(u), (expected.mT @ u[..., None])[..., 0], "vjp of linearise")


def _check_bijection(generator: Generator) -> None:
    """A claim that draws can refute, though not prove."""
    z = 2 * torch.randn(64, *generator.noise_shape, dtype=torch.float64)
    expect(generator.noise_dim == generator.output_dim, "is_bijective with noises unlike outputs")
    signs = torch.linalg.slogdet(generator.jacobian(z)).sign
    expect(len(signs.unique()) == 1, "is_bijective, but the determinant changes its sign: it folds")
    expect_close(generator.inverse(generator(z)), z, "inverse of the draws against their noise")


def _reverse_jacobian(generator: Generator, row: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(lambda x: generator(x[None])[0], row)
    flat: Tensor = jacobian.reshape(generator.output_dim, generator.noise_dim)
    return flat


def _check_rows_apart(generator: Generator) -> None:
    z = torch.randn(4, *generator.noise_shape, dtype=torch.float64)
    alone = torch.stack([generator(row[None])[0] for row in z])
    expect_close(generator(z), alone, "draws made together against draws made one by one")


def _check_config(generator: Generator) -> None:
    """A generator without a config is saved by its tensors alone, which is allowed."""
    config = generator.config()
    if config is None:
        return
    kind = generator_class(config["type"])
    expect(kind is type(generator), f"config says type {config['type']!r}, which names {kind}")
    again = type(generator)(**{k: v for k, v in config.items() if k != "type"}).double().eval()
    again.load_state_dict(generator.state_dict())
    z = torch.randn(3, *generator.noise_shape, dtype=torch.float64)
    expect_close(again(z), generator(z), "draws of the generator made anew from config")
