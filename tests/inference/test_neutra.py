"""Neural transport: the density in the noise's space, and a chain that is exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import AutoIAFNormal

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import GuideError, StateError
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.inference.neutra import NeuTraReparam
from tests.generators.test_residual import jolted

KINDS = [
    partial(BijectiveGenerator, hidden_dim=4, num_blocks=2),
    partial(AutoregressiveGenerator, hidden_dim=4, num_blocks=2),
]


def model() -> None:
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("rows", 2):
        mean = pyro.sample("mean", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.tensor([0.5, 1.5]))


@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_that_of_the_changed_variables(kind: Any, factorized: bool) -> None:
    torch.manual_seed(0)
    guide = HyperNetworkGuide(model, generator=kind, factorized=factorized).double().setup()
    for sampler in guide.samplers:
        jolted(sampler.generator, 0.2)
    neutra = NeuTraReparam(guide)
    trace = poutine.trace(neutra.reparam(model)).get_trace()
    name = next(name for name in trace.nodes if name.endswith("_shared_latent"))
    noise = trace.nodes[name]["value"]
    values = {k: v[0] for k, v in neutra.transform_sample(noise[None]).items()}
    for site, value in values.items():
        torch.testing.assert_close(trace.nodes[site]["value"], value)
    conditioned = poutine.trace(poutine.condition(model, values)).get_trace()
    log_q = guide.log_density({k: v[None] for k, v in values.items()})[0]
    log_noise = dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0).log_prob(noise).sum()
    expected = conditioned.log_prob_sum() + log_noise - log_q
    torch.testing.assert_close(trace.log_prob_sum(), expected)
    transform = neutra.guide.get_transform()
    torch.testing.assert_close(transform.inv(transform(noise)), noise)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_through_a_bad_guide_finds_the_posterior(kind: Any) -> None:
    pyro.set_rng_seed(0)

    def chain(program: Any) -> MCMC:
        mcmc = MCMC(NUTS(program), num_samples=1500, warmup_steps=300, disable_progbar=True)
        mcmc.run()
        return mcmc

    guide = HyperNetworkGuide(model, generator=kind, init_scale=0.5).double().setup()
    neutra = NeuTraReparam(guide)
    mine = neutra.transform_sample(next(iter(chain(neutra.reparam(model)).get_samples().values())))
    theirs = chain(model).get_samples()
    for site in ("mean", "scale"):
        torch.testing.assert_close(
            mine[site].mean(0), theirs[site].mean(0).to(mine[site]), rtol=0, atol=0.12
        )
        torch.testing.assert_close(
            mine[site].std(0), theirs[site].std(0).to(mine[site]), rtol=0.15, atol=0
        )


def test_training_the_guide_further_changes_nothing() -> None:
    guide = HyperNetworkGuide(model, generator=KINDS[1]).setup()
    neutra = NeuTraReparam(guide)
    noise = torch.randn(4, 3)
    before = neutra.transform_sample(noise)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(1.0)
    after = neutra.transform_sample(noise)
    assert all(torch.equal(before[site], after[site]) for site in before)


def test_other_guides_are_refused() -> None:
    with pytest.raises(GuideError, match="not certain to be a bijection"):
        NeuTraReparam(HyperNetworkGuide(model, hidden_dims=(4,)).setup())
    with pytest.raises(GuideError, match="pyro.infer.reparam.NeuTraReparam"):
        NeuTraReparam(AutoIAFNormal(model))  # type: ignore[arg-type]
    with pytest.raises(StateError, match="not built yet"):
        NeuTraReparam(HyperNetworkGuide(model, generator=KINDS[1]))
