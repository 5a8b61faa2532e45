"""Eight schools by NumPyro's NUTS, with and without what it takes to compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

__all__ = ["Chain", "chain_of_schools", "has_numpyro"]


def has_numpyro() -> bool:
    """Whether NumPyro is installed."""
    return find_spec("numpyro") is not None


class Chain:
    """
    A chain of the eight schools, which is run again and again.

    :param args: effects and their errors.
    :param int warm_up: steps before draws are kept.
    :param int num_samples: draws.
    """

    def __init__(self, args: tuple[Tensor, ...], warm_up: int, num_samples: int) -> None:
        import jax
        from numpyro.infer import MCMC, NUTS

        self._args = tuple(value.numpy() for value in args)
        mcmc = MCMC(NUTS(_model()), num_warmup=warm_up, num_samples=num_samples, progress_bar=False)

        def draws(key: Any, *args: Any) -> dict[str, Any]:
            mcmc.run(key, *args)
            found: dict[str, Any] = mcmc.get_samples()
            return found

        self._draws = jax.jit(draws)  # else each run compiles its loop anew

    def run(self, seed: int) -> tuple[dict[str, Tensor], float]:
        """
        Runs it from the beginning.

        :param int seed: of its random numbers.
        :returns: the draws by site, and milliseconds of CPU time.
        """
        import jax

        begin = time.process_time()
        found = self._draws(jax.random.PRNGKey(seed), *self._args)
        samples = {name: jax.device_get(values) for name, values in found.items()}
        spent = 1e3 * (time.process_time() - begin)
        return {name: torch.tensor(values) for name, values in samples.items()}, spent


def chain_of_schools(
    args: tuple[Tensor, ...], lengths: tuple[int, int], seed: int
) -> Iterator[tuple[str, dict[str, Tensor], float]]:
    """
    The first run of a chain, and one with another seed that finds all compiled.

    :param args: effects and their errors.
    :param lengths: steps of warm-up, and draws.
    :param int seed: of the first; the second has the next.
    :returns: what is counted, the draws and milliseconds of CPU time.
    """
    chain = Chain(args, *lengths)
    yield "with compilation", *chain.run(seed)
    yield "once compiled", *chain.run(seed + 1)


def _model() -> Callable[..., Any]:
    """That of Pyro, in NumPyro's words."""
    import numpyro
    import numpyro.distributions as dist

    def model(y: Any, sigma: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", len(y)):
            t = numpyro.sample("t", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mu + tau * t, sigma), obs=y)

    return model
