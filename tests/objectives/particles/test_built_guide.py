"""Restarts by seed begin at places of their own, whichever way the draws of a step are made."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.infer.autoguide.initialization import init_to_sample

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, LinearisedELBO, MMNNGuide
from pyro_implicit.distributions import ImplicitDistribution, sample_implicit
from pyro_implicit.generators import AutoregressiveGenerator, MLPGenerator
from pyro_implicit.objectives.particles.built_guide import build

Y = torch.linspace(-1, 1, 5)


def model(y: Any = Y) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(w.sum(-1) + v, 1.0), obs=y)


def local(y: Any = Y) -> None:
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def listed() -> AutoGuideList:
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(poutine.block(model, expose=["w"]), init_from=None))
    guide.append(AutoNormal(poutine.block(model, expose=["v"]), init_loc_fn=init_to_sample))
    return guide


GENERATORS = {"may fold": MLPGenerator(3, 3, skip=True), "cannot": AutoregressiveGenerator(3)}


def function(kind: str, *_: Any) -> None:
    """Makes a parameter when it is run."""
    loc = pyro.param("loc", lambda: torch.randn(()))
    sample_implicit("w", ImplicitDistribution(GENERATORS[kind]))
    pyro.sample("v", dist.Normal(loc, 1.0))


GUIDES: dict[str, tuple[Any, Any]] = {
    "hypernetwork": (model, lambda: HyperNetworkGuide(model, init_from=None)),
    "matrices": (model, lambda: MMNNGuide(model, init_from=None, budget=50)),
    "conditional": (
        local,
        lambda: ConditionalHyperNetworkGuide(local, context=lambda y: y[:, None]),
    ),
    "a list": (model, listed),
    "a function": (model, lambda: partial(function, "cannot")),
    "a function that may fold": (model, lambda: partial(function, "may fold")),
}


def _start(name: str, seed: int, vectorised: Any, nesting: float) -> torch.Tensor:
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    of, make = GUIDES[name]
    objective = LinearisedELBO(4, vectorize_particles=vectorised, max_plate_nesting=nesting)
    SVI(of, make(), pyro.optim.Adam({"lr": 1e-12}), objective).step(Y)
    if name.startswith("a function"):
        return pyro.param("loc").detach().clone()
    return torch.cat([p.detach().flatten() for p in pyro.get_param_store()._params.values()])


@pytest.mark.parametrize("nesting", [float("inf"), 1])
@pytest.mark.parametrize(
    ("name", "vectorised"),
    [(name, way) for name in GUIDES for way in (False, True)]
    # a generator that may fold is not mapped
    + [(name, "vmap") for name in GUIDES if name not in ("matrices", "a function that may fold")],
)
def test_a_seed_reaches_the_start(name: str, vectorised: Any, nesting: float) -> None:
    first, other = (_start(name, seed, vectorised, nesting) for seed in (0, 1))
    again = _start(name, 0, vectorised, nesting)
    assert not torch.allclose(first, other, atol=1e-4)
    torch.testing.assert_close(first, again)


def test_what_is_built_is_left_alone() -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    before = torch.get_rng_state()
    build(guide, (Y,), {})
    build(function, (Y,), {})
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("nesting", [float("inf"), 1])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_seed_reaches_what_the_model_learns_and_steps_move_it(
    vectorised: bool, nesting: float
) -> None:
    def learned(y: Any = Y) -> None:
        shift = pyro.param("shift", lambda: torch.randn(()))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(w + shift, 1.0), obs=y)

    found = []
    for seed in (0, 1, 0):
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        guide = HyperNetworkGuide(learned, init_from=None)
        objective = LinearisedELBO(4, vectorize_particles=vectorised, max_plate_nesting=nesting)
        svi = SVI(learned, guide, pyro.optim.Adam({"lr": 0.01}), objective)
        svi.step(Y)
        found.append(pyro.param("shift").item())
        svi.step(Y)
        assert pyro.param("shift").item() != found[-1]
    assert found[0] == found[2] and abs(found[0] - found[1]) > 0.1
