"""Densities of model and guide beside the draws: importance weights that repair a guide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide, to_arviz
from pyro_implicit.arviz.compatibility import arviz_line, import_arviz
from pyro_implicit.exceptions import ArgumentError

GROUPS = ("posterior", "log_likelihood", "sample_stats")
Y = torch.tensor([0.3, 1.1, 0.8])


def model(y: Any = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    pyro.sample("spare", dist.Gamma(2.0, 2.0))
    with pyro.plate("rows", 3):
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def _guide() -> HyperNetworkGuide:
    pyro.set_rng_seed(0)
    return HyperNetworkGuide(model, init_scale=0.6).setup(Y)


@pytest.mark.long
def test_the_densities_are_those_of_traces() -> None:
    guide = _guide()
    data = to_arviz(model, guide, Y, num_samples=5, groups=GROUPS)
    posterior, stats = data["posterior"], data["sample_stats"]
    for s in range(5):
        values = {n: torch.tensor(float(posterior[n][0, s])) for n in ("mean", "spare")}
        log_joint = poutine.trace(poutine.condition(model, values)).get_trace(Y).log_prob_sum()
        log_q = guide.log_density({name: value[None] for name, value in values.items()})[0]
        jacobian = values["spare"].log()  # of the exponential map
        assert float(stats["lp"][0, s]) == pytest.approx(float(log_joint + jacobian), abs=1e-4)
        assert float(stats["log_q"][0, s]) == pytest.approx(
            float((log_q + jacobian).detach()), abs=1e-4
        )


def _smoothed_weights(log_ratios: np.ndarray) -> np.ndarray:
    """By either line of ArviZ; 1.x takes log-likelihoods, the negatives of log-ratios."""
    arviz = import_arviz()
    if arviz_line(arviz) == 0:
        return np.exp(np.asarray(arviz.psislw(log_ratios)[0]))
    from arviz_stats.base import array_stats

    return np.exp(array_stats.psislw(-log_ratios)[0])


@pytest.mark.long
def test_smoothed_weights_repair_an_unfitted_guide() -> None:
    data = to_arviz(model, _guide(), Y, num_samples=2000, groups=("posterior", "sample_stats"))
    ratios = (data["sample_stats"]["lp"] - data["sample_stats"]["log_q"]).values[0]
    weights = _smoothed_weights(ratios)
    assert weights.sum() == pytest.approx(1.0)
    variance = 1 / (1 + 3 / 0.25)
    mean = variance * float(Y.sum()) / 0.25
    found = float(weights @ data["posterior"]["mean"].values[0])
    assert found == pytest.approx(mean, abs=0.1 * math.sqrt(variance))
    spare = float(weights @ data["posterior"]["spare"].values[0])
    assert spare == pytest.approx(1.0, abs=0.15)


def test_the_group_is_made_on_request_only() -> None:
    assert "sample_stats" not in to_arviz(model, _guide(), Y, num_samples=2)


@pytest.mark.parametrize("guide", [AutoNormal(model), HyperNetworkGuide(model, scale=0.1)])
def test_guides_without_a_density_are_refused(guide: Any) -> None:
    guide(Y)
    with pytest.raises(ArgumentError, match="densities of one bijective guide"):
        to_arviz(model, guide, Y, num_samples=2, groups=GROUPS)


def test_restarts_and_missing_draws_are_refused() -> None:
    guide = _guide()
    with pytest.raises(ArgumentError, match="found a list of guides"):
        to_arviz(model, [guide, guide], Y, num_samples=2, groups=GROUPS)
    with pytest.raises(ArgumentError, match="not among the groups"):
        to_arviz(model, guide, Y, num_samples=2, groups=("sample_stats",))
