"""The bias of chains without an accept step is told; exact chains and draws are left alone."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import refine
from pyro_implicit.chains import MCLMC
from pyro_implicit.chains.virial import virials, warn_of_virials


def of_normal(scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws of deviation ``scale`` and gradients of a standard normal density."""
    generator = torch.Generator().manual_seed(seed)
    draws = 3.0 + scale * torch.randn(16, 50, 7, generator=generator)
    return virials(draws, 3.0 - draws, [1, 4, 2])


@given(st.floats(0.5, 2.0), st.integers(0, 2**31))
def test_it_is_the_ratio_of_variances_for_normal_densities(scale: float, seed: int) -> None:
    mean, error = of_normal(scale, seed)
    assert mean.shape == error.shape == (3,)
    torch.testing.assert_close(mean / scale**2, torch.ones_like(mean), atol=0.4, rtol=0)
    assert bool(((mean / scale**2 - 1).abs() < 8 * error / scale**2 + 0.05).all())


@pytest.mark.long
@given(st.floats(1.0, 9.0), st.integers(0, 2**31))
def test_exact_draws_of_any_density_have_one(shape: float, seed: int) -> None:
    pyro.set_rng_seed(seed)
    gamma = dist.Gamma(shape, 2.0).sample((16, 400, 3))
    u = gamma.log()  # whose log-density has the gradient shape - 2 exp(u)
    mean, error = virials(u, shape - 2.0 * gamma, [3])
    assert abs(float(mean) - 1) < 6 * float(error) + 0.01


def test_what_is_certainly_off_is_told_and_nothing_else() -> None:
    with pytest.warns(UserWarning, match="r-hat does not see") as caught:
        warn_of_virials(of_normal(1.2), ("a", "b", "c"), 5e-3)
    text = str(caught[0].message)
    assert "'b' (1." in text and "kernel='hmc'" in text and "energy_error=0.0003)" in text
    mean, error = (
        torch.tensor([1.05, 1.3, 1.2, 0.8, 1.2]),
        torch.tensor([0.001, 0.2, 0.01, 0.01, 0.01]),
    )
    with pytest.warns(UserWarning, match=r"'c' \(1.20\), 'e' \(1.20\), 'd' \(0.80\) are off"):
        warn_of_virials((mean, error), "abcde", 5e-3)
    with pytest.warns(UserWarning, match="and 1 more are off"):
        warn_of_virials((mean, torch.full((5,), 0.01)), "abcde", 5e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_virials(of_normal(1.0), "abc", 5e-3)


def wide(num_latents: int = 30) -> None:
    with pyro.plate("latents", num_latents):
        pyro.sample("u", dist.Gamma(2.0, 1.0))


def refined(kernel: Any) -> Any:
    start = {"u": dist.Gamma(2.0, 1.0).sample((16, 30))}
    options: dict[str, Any] = {"num_steps": 2000, "kernel": kernel, "seed": 0}
    return refine(wide, start, progress=False, **options)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:refine.*observes nothing")
@pytest.mark.filterwarnings("ignore:the model observes nothing")
def test_large_steps_are_told_and_accepted_ones_have_no_bias() -> None:
    pyro.set_rng_seed(0)
    with pytest.warns(UserWarning, match=r"'u' \(1.*kernel='hmc'"):
        biased = refined(MCLMC(energy_error=0.2))
    spread = biased.sample(1600)["u"].std(0).mean() / 2**0.5
    assert spread > 1.05
    before = biased.num_gradients
    assert before == 16 * biased.num_steps + 32  # those at the draws are not counted
    refined("hmc")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the step size of mclmc biases these chains")
def test_an_interrupted_look_keeps_the_chains_and_their_count() -> None:
    class Interrupted:
        num_gradients = 7

        def __call__(self, u: Tensor) -> Any:
            self.num_gradients += len(u)
            raise KeyboardInterrupt

    chains, density = refined(MCLMC(energy_error=0.2)), Interrupted()
    chains._warn_of_bias(density)
    assert density.num_gradients == 7 and not chains.interrupted
