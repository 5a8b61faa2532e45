"""What else one would take for regression: Gaussian processes, and Laplace's approximation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import pyro.contrib.gp as gp
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import fixed_seed
from benchmarks.shared.uci import COVERAGE, Split

__all__ = [
    "gaussian_process",
    "gaussian_scores",
    "has_laplace",
    "laplace",
    "sparse_gaussian_process",
]

_STEPS = 100  # of prior precision and noise, as in laplace-torch's own example of regression
_AT_ONCE = 20_000  # rows whose Jacobians are held at a time: all but those of protein
_JITTER = 1e-6  # of the kernel matrix of the inducing inputs, as Pyro has it


def gaussian_process(
    split: Split, seed: int, *, learn_from: int | None = None, condition_on: int | None = None
) -> tuple[Tensor, Tensor]:
    """
    scikit-learn's, with a length scale for each input and learned noise.

    :param learn_from: rows, drawn at random, by whose marginal likelihood scales and noise are
        chosen; all by default.
    :param condition_on: rows, those and more, that predictions are conditioned on; all by default.
    :returns: mean and deviation of each held-out target, shape ``(M,)`` each.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    lengths = RBF(np.ones(split.x.shape[1]), (1e-2, 1e4))
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * lengths + WhiteKernel(0.1, (1e-6, 1e1))
    rows = np.random.default_rng(seed).permutation(len(split.x))
    learnt, seen = rows[:learn_from], rows[:condition_on]
    if len(learnt) == len(rows):
        learnt = seen = np.arange(len(rows))
    x, y = split.x.double().numpy(), split.y.double().numpy()
    process = GaussianProcessRegressor(kernel, random_state=seed)
    process.fit(x[learnt], y[learnt])
    if len(seen) > len(learnt):
        process = GaussianProcessRegressor(process.kernel_, optimizer=None)
        process.fit(x[seen], y[seen])
    mean, scale = process.predict(split.x_held.double().numpy(), return_std=True)
    return torch.from_numpy(mean), torch.from_numpy(scale)


def sparse_gaussian_process(
    split: Split, seed: int, *, num_inducing: int, steps: Iterable[Any], rate: float
) -> tuple[Tensor, Tensor]:
    """
    Pyro's, by the variational bound on the marginal likelihood of all rows. Length scales start at
    the root of the number of inputs, inducing inputs as rows drawn at random.

    :param int num_inducing: inducing inputs at most, which are trained as well.
    :param steps: of Adam, in double precision.
    :param float rate: its learning rate.
    :returns: mean and deviation of each held-out target, shape ``(M,)`` each.
    """
    with fixed_seed(seed, torch.float64):
        x, y = split.x.double(), split.y.double()
        lengths = torch.full(x.shape[1:], x.shape[1] ** 0.5)
        model = gp.models.SparseGPRegression(
            x,
            y,
            gp.kernels.RBF(x.shape[1], lengthscale=lengths),
            x[torch.randperm(len(x))[:num_inducing]],
            noise=torch.tensor(0.1),
            jitter=_JITTER,
        )
        adam, loss = torch.optim.Adam(model.parameters(), lr=rate), Trace_ELBO()
        for _ in steps:
            adam.zero_grad()
            loss.differentiable_loss(model.model, model.guide).backward()
            adam.step()
        with torch.no_grad():
            mean, variance = model(split.x_held.double(), full_cov=False, noiseless=False)
    return mean, variance.clamp_min(model.noise.item()).sqrt()


def has_laplace() -> bool:
    """Whether laplace-torch is installed."""
    return find_spec("laplace") is not None


def laplace(
    split: Split,
    weights: Mapping[str, Tensor],
    sigma: float,
    subset: str,
    structure: str = "full",
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """
    laplace-torch's, linearised; prior precision and noise by the marginal likelihood.

    :param weights: a mode of the network of :func:`benchmarks.shared.uci.build_model`.
    :param float sigma: the noise at the mode.
    :param str subset: ``"all"`` or ``"last_layer"``.
    :param str structure: of the Hessian: ``"full"`` or ``"kron"``.
    :param dtype: of all that follows the mode.
    :returns: mean and deviation of each held-out target, shape ``(M,)`` each.
    """
    from laplace import Laplace

    units, inputs = weights["0.weight"].shape
    mode = nn.Sequential(nn.Linear(inputs, units), nn.Tanh(), nn.Linear(units, 1)).to(dtype)
    mode.load_state_dict(dict(weights))
    rows = TensorDataset(split.x.to(dtype), split.y[:, None].to(dtype))
    found: Any = Laplace(
        mode, "regression", subset_of_weights=subset, hessian_structure=structure, sigma_noise=sigma
    )
    found.fit(DataLoader(rows, batch_size=min(len(rows), _AT_ONCE)))
    _by_marginal_likelihood(found, sigma)
    with torch.no_grad():
        mean, variance = found(split.x_held.to(dtype))
        noise = found.sigma_noise.double().square()
    return mean[:, 0].double(), (variance[:, 0, 0].double() + noise).sqrt()


def _by_marginal_likelihood(found: Any, sigma: float) -> None:
    """
    Prior precision and noise, from those of the mode. laplace-torch 0.3 scales Kronecker factors by
    ``math.pow``, which has no gradient: without the built-in one in its place the noise would not
    see the log-determinant.
    """
    from laplace.utils import matrix

    log_prior = torch.zeros(1, requires_grad=True)
    log_sigma = torch.full((1,), float(np.log(sigma)), requires_grad=True)
    adam = torch.optim.Adam([log_prior, log_sigma], lr=0.1)
    with mock.patch.object(matrix, "pow", pow, create=True):
        for _ in range(_STEPS):
            adam.zero_grad()
            (-found.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
            adam.step()
    found.prior_precision = found.prior_precision.detach()
    found.sigma_noise = found.sigma_noise.detach()


def gaussian_scores(mean: Tensor, scale: Tensor, split: Split) -> dict[str, float]:
    """
    The scores of :func:`benchmarks.shared.uci.score` and the CRPS, for Gaussian predictions.

    :param mean: of each held-out target, standardised, shape ``(M,)``.
    :param scale: deviations, shape ``(M,)``.
    """
    held = split.y_held.double()
    normal = torch.distributions.Normal(mean, scale)
    half = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + COVERAGE) / 2))
    return {
        "rmse": float((mean - held).square().mean().sqrt() * split.y_scale),
        "log_likelihood": float(normal.log_prob(held).mean() - np.log(split.y_scale)),
        "coverage": float(((held - mean).abs() <= half * scale).double().mean()),
        "crps": float(_ranked(mean, scale, held).mean() * split.y_scale),
    }


def _ranked(mean: Tensor, scale: Tensor, held: Tensor) -> Tensor:
    """The continuous ranked probability score of a normal, in closed form."""
    normal, error = torch.distributions.Normal(0.0, 1.0), (held - mean) / scale
    spread = error * (2 * normal.cdf(error) - 1) + 2 * normal.log_prob(error).exp()
    score: Tensor = scale * (spread - np.pi**-0.5)
    return score
