"""Every entropy from Jacobians, and its gradient, against dense algebra of autograd in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LanczosELBO,
    LinearisedELBO,
    SingularValueELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.generators import MLPGenerator, ModuleGenerator

pytestmark = pytest.mark.usefixtures("double")
X = torch.linspace(-1.0, 1.0, 10).reshape(5, 2)


def _global(x: Tensor) -> None:
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with poutine.scale(scale=0.7):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", 20, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w.sum(-1), scale), obs=x[:, 0])


def _local(x: Tensor) -> None:
    with pyro.plate("data", 20, subsample_size=len(x)):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w.sum(-1), s), obs=x[:, 0])


class HandWritten(nn.Module):
    """A site in a subsampled plate, under a scale and a mask that differ between rows."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.generator = ModuleGenerator(
            nn.Sequential(nn.Linear(d, 4), nn.Tanh(), nn.Linear(4, 2)), (d,), 2
        )
        self.log_scale = nn.Parameter(torch.tensor([-1.0, -0.5]))

    def forward(self, x: Tensor) -> None:
        mask = torch.tensor([True, False, True, True, True])
        fn = ImplicitDistribution(self.generator, scale=self.log_scale.exp())
        with pyro.plate("data", 20, subsample_size=len(x)), poutine.mask(mask=mask):
            with poutine.scale(scale=torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])):
                sample_implicit("w", fn)

    def setup(self, x: Tensor) -> HandWritten:
        return self


def _hand_model(x: Tensor) -> None:
    with pyro.plate("data", 20, subsample_size=len(x)):
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


CASES: dict[str, tuple[Any, Any]] = {}
for d in (2, 4, 6):
    for learn in (False, "scalar", "diagonal"):
        given: Any = {"noise_dim": d, "hidden_dims": (5,), "scale": 0.3, "learn_scale": learn}
        CASES[f"joint d={d} {learn}"] = _global, partial(HyperNetworkGuide, _global, **given)
for learn in (False, "diagonal"):
    given = {"noise_dim": 2, "hidden_dims": (5,), "scale": 0.3, "learn_scale": learn}
    CASES[f"factorised {learn}"] = (
        _global,
        partial(HyperNetworkGuide, _global, factorized=True, **given),
    )
    for factorized in (False, True):
        CASES[f"conditional {learn} {factorized}"] = (
            _local,
            partial(ConditionalHyperNetworkGuide, _local, factorized=factorized, **given),
        )
CASES["laplace"] = (
    _global,
    partial(HyperNetworkGuide, _global, hidden_dims=(5,), scale=0.3, init_from="laplace"),
)
CASES["narrow"] = (
    _global,
    partial(HyperNetworkGuide, _global, generator=lambda m: MLPGenerator(4, m, (2,)), scale=0.01),
)
for d in (1, 2, 3):
    CASES[f"hand-written d={d}"] = _hand_model, partial(HandWritten, d)


def _dense(node: Any, log_det: Any) -> Tensor:
    """The entropy at each draw, from the generator's Jacobian by autograd, shape ``batch``."""
    fn = node["fn"]
    shape, m = fn.generator.noise_shape, fn.event_shape[-1]
    noise = fn.noise.detach().requires_grad_()
    out = fn.generator(noise)
    rows = [torch.autograd.grad(out[..., i].sum(), noise, create_graph=True)[0] for i in range(m)]
    jac = torch.stack(rows, -2).reshape(*out.shape[:-1], m, shape.numel())
    value = log_det(jac, torch.as_tensor(fn.scale).expand(m)) + 0.5 * m * (
        1 + math.log(2 * math.pi)
    )
    if fn.preconditioner is not None:
        value = value + fn.preconditioner.log_abs_det
    return value.expand(fn.batch_shape)


def _whole(jac: Tensor, sigma: Tensor) -> Tensor:
    return 0.5 * torch.linalg.slogdet(jac @ jac.mT + torch.diag(sigma**2)).logabsdet


def _smallest(jac: Tensor, sigma: Tensor) -> Tensor:
    values = torch.linalg.svdvals(jac / sigma[:, None])
    return 0.5 * values.shape[-1] * (1 + values[..., -1] ** 2).log() + sigma.log().sum()


def _expected(guide: Any, log_det: Any) -> Tensor:
    pyro.set_rng_seed(3)
    trace = poutine.trace(guide).get_trace(X)
    total: Any = 0.0
    for node in trace.nodes.values():
        if node["type"] != "sample" or node["infer"].get("is_implicit_noise"):
            continue
        if isinstance(node["fn"], ImplicitDistribution):
            each = _dense(node, log_det)
            each = each * (1.0 if node["mask"] is None else node["mask"]) * node["scale"]
        elif isinstance(node["fn"], dist.Delta):  # the log-Jacobian of a constraint
            each = -node["fn"].log_density * node["scale"]
        else:
            continue
        total = total + each.sum()
    return total


METHODS: dict[str, tuple[Any, Any]] = {
    "linearised": (LinearisedELBO, _whole),
    "lanczos": (partial(LanczosELBO, num_steps=8, num_probes=60), _whole),  # a multiple of 1 to 6
    "singular value": (partial(SingularValueELBO, num_iterations=10), _smallest),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_value_and_gradient(method: str, case: str) -> None:
    torch.manual_seed(1)
    model, make = CASES[case]
    guide = make().double()
    guide.setup(X)
    guide.double()
    make_objective, log_det = METHODS[method]
    parameters = [p for p in guide.parameters() if p.requires_grad]
    pyro.set_rng_seed(3)
    found = make_objective().terms(model, guide, X)["entropy"]
    expected = _expected(guide, log_det)
    assert found.item() == pytest.approx(expected.item(), rel=1e-8, abs=1e-7)
    mine, theirs = (
        torch.autograd.grad(value, parameters, allow_unused=True) for value in (found, expected)
    )
    for parameter, *pair in zip(parameters, mine, theirs, strict=True):
        a, b = (torch.zeros_like(parameter) if each is None else each for each in pair)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
