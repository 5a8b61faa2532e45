"""The two ways to average Hessians agree where there is nothing to average."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.cost.hessian_starts import BEFORE, NOW, before, now, table
from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides.initialization.mean_field import MeanField
from pyro_implicit.handlers.log_joint import LogJoint


def test_of_a_gaussian_both_are_its_precision() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(w.sum(-1), 0.5), obs=torch.tensor(1.0))

    sites = HyperNetworkGuide(model, init_from=None).setup().sites
    density = LogJoint(model, sites, (), {})
    expected = torch.eye(3) + 4 * torch.ones(3, 3)
    fit = MeanField(torch.full((3,), 4 / 13), expected.diagonal().rsqrt(), True)
    first, count = before(density, fit, 12)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4)
    assert count == 12
    second, count = now(density, fit, 12)
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-4)
    assert count == 4


def test_the_table_has_medians() -> None:
    one = {"model": "m", "latents": 3, "cpu_s": 1.0, "trained": -2.0, "hessians": 12}
    rows = [one | {"seed": s, "way": way, "bound": -s} for s in (1, 2, 3) for way in (BEFORE, NOW)]
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert "-1, -2, -3" in lines[2]
    assert pytest.approx(-2.0) == rows[0]["trained"]
