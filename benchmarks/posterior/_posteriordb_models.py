"""
The five models of the data folder's ``posteriordb``, as a user of Pyro would write them.

Each entry of :data:`MODELS` turns a file's data into the model's arguments, and draws of
the model's sites into draws of the parameters that the reference has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["MODELS", "Posterior"]

Arrays = dict[str, Any]
Draws = dict[str, Tensor]


def eight_schools(y: Tensor, sigma: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        t = pyro.sample("t", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * t, sigma), obs=y)


def kidscore_momiq(mom_iq: Tensor, kid_score: Tensor) -> None:
    beta = pyro.sample("beta", dist.ImproperUniform(constraints.real, (), (2,)))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    with pyro.plate("children", len(kid_score)):
        mean = beta[..., 0] + beta[..., 1] * mom_iq
        pyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


def autoregression(lags: Tensor, y: Tensor) -> None:
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[-1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    with pyro.plate("time", len(y)):
        pyro.sample("y", dist.Normal(alpha + (beta * lags).sum(-1), sigma), obs=y)


def linear_regression(x: Tensor, y: Tensor) -> None:
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[-1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((beta * x).sum(-1), sigma), obs=y)


def election_study(x: Tensor, party: Tensor) -> None:
    beta = pyro.sample("beta", dist.ImproperUniform(constraints.real, (), (x.shape[-1],)))
    sigma = pyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("people", len(party)):
        pyro.sample("party", dist.Normal((beta * x).sum(-1), sigma), obs=party)


@dataclass(frozen=True)
class Posterior:
    """
    :param str file: name in the data folder.
    :param model: a Pyro model.
    :param arguments: from the arrays of the file to those of the model (float64 tensors).
    :param parameters: from draws of the sites, ``{name: (S, *shape)}``, to the reference's
        parameters in vector form, ``{name: (S,) or (S, n)}``; the sites themselves by default.
    :param targets: allowed error of means (in reference standard deviations) and of standard
        deviations (relative).
    """

    file: str
    model: Callable[..., None]
    arguments: Callable[[Arrays], tuple[np.ndarray, ...]]
    parameters: Callable[[Draws], Draws] = lambda draws: draws
    targets: tuple[float, float] = (0.05, 0.10)

    def tensors(self, arrays: Arrays) -> tuple[Tensor, ...]:
        """The model's arguments in float64."""
        data = {k.removeprefix("data."): v for k, v in arrays.items() if k.startswith("data.")}
        return tuple(torch.tensor(a, dtype=torch.float64) for a in self.arguments(data))

    def moments(self, draws: Draws) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of each scalar parameter, by the reference's names."""
        result = {}
        for name, values in self.parameters(draws).items():
            columns = values.reshape(len(values), -1).double()
            for j, column in enumerate(columns.unbind(-1), start=1):
                label = f"{name}[{j}]" if values.dim() > 1 else name
                result[label] = (column.mean().item(), column.std().item())
        return result


def _lagged(data: Arrays) -> tuple[np.ndarray, ...]:
    y, k = data["y"], int(data["K"])
    return np.stack([y[k - j : len(y) - j] for j in range(1, k + 1)], -1), y[k:]


def _survey(data: Arrays) -> tuple[np.ndarray, ...]:
    ages = [data["age_discrete"] == level for level in (2, 3, 4)]
    first = [np.ones(int(data["N"])), data["real_ideo"], data["race_adj"]]
    columns = [*first, *ages, data["educ1"], data["gender"], data["income"]]
    return np.stack(columns, -1).astype(float), data["partyid7"]


def _schools(draws: Draws) -> Draws:
    mu, tau = draws["mu"].reshape(-1), draws["tau"].reshape(-1)
    theta = mu[:, None] + tau[:, None] * draws["t"].reshape(len(mu), -1)
    return {"theta": theta, "mu": mu, "tau": tau}


MODELS = {
    "eight_schools": Posterior(
        "eight_schools-eight_schools_noncentered",
        eight_schools,
        lambda data: (data["y"], data["sigma"]),
        _schools,
        targets=(0.2, 0.25),
    ),
    "kidscore_momiq": Posterior(
        "kidiq-kidscore_momiq", kidscore_momiq, lambda data: (data["mom_iq"], data["kid_score"])
    ),
    "arK": Posterior("arK-arK", autoregression, _lagged),
    "blr": Posterior("sblri-blr", linear_regression, lambda data: (data["X"], data["y"])),
    "nes1980": Posterior("nes1980-nes", election_study, _survey),
}
