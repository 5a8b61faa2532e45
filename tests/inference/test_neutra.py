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
from pyro_implicit.exceptions import ArgumentError, GuideError, ShapeError, StateError
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


def in_a_plate() -> None:
    with pyro.plate("rows", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x**2, 1.0), obs=torch.tensor([0.5, 1.5, 0.1]))


def weighed() -> None:
    with poutine.scale(scale=2.0):
        x = pyro.sample("x", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    with poutine.mask(mask=False):
        pyro.sample("masked", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x.sum(), 1.0), obs=torch.tensor(1.0))


@pytest.mark.parametrize("program", [model, in_a_plate, weighed, poutine.scale(model, 0.5)])
@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_that_of_the_changed_variables(
    kind: Any, factorized: bool, program: Any
) -> None:
    """By a Jacobian of the whole map from noise to latents, which knows nothing of the guide."""
    torch.manual_seed(0)
    guide = HyperNetworkGuide(program, generator=kind, factorized=factorized).double().setup()
    for sampler in guide.samplers:
        jolted(sampler.generator, 0.2)
    neutra = NeuTraReparam(guide)
    moved = neutra.reparam(program)
    trace = poutine.trace(moved).get_trace()
    noise = trace.nodes["neutra_noise"]["value"]
    values = neutra.transform_sample(noise)
    for site, value in values.items():
        torch.testing.assert_close(trace.nodes[site]["value"], value)

    def latents(z: torch.Tensor) -> torch.Tensor:
        return torch.cat([value.reshape(-1) for value in neutra.transform_sample(z).values()])

    log_volume = torch.linalg.slogdet(torch.func.jacrev(latents)(noise)).logabsdet
    conditioned = poutine.trace(poutine.condition(program, values)).get_trace()
    expected = conditioned.log_prob_sum() + log_volume
    torch.testing.assert_close(trace.log_prob_sum(), expected)


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
    mine = neutra.transform_sample(chain(neutra.reparam(model)).get_samples()["neutra_noise"])
    theirs = chain(model).get_samples()
    for site in ("mean", "scale"):
        torch.testing.assert_close(
            mine[site].mean(0), theirs[site].mean(0).to(mine[site]), rtol=0, atol=0.12
        )
        torch.testing.assert_close(
            mine[site].std(0), theirs[site].std(0).to(mine[site]), rtol=0.15, atol=0
        )


def test_draw_and_change_of_volume_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = HyperNetworkGuide(model, generator=KINDS[1]).setup()
    neutra = NeuTraReparam(guide).reparam(model)
    passes, whole = [], AutoregressiveGenerator._pass
    counted = lambda *args: passes.append(1) or whole(*args)  # noqa: E731
    monkeypatch.setattr(AutoregressiveGenerator, "_pass", counted)
    poutine.condition(neutra, data={"neutra_noise": torch.zeros(guide.latent_dim)})()
    passes.clear()  # a generator is tried at its first use
    poutine.condition(neutra, data={"neutra_noise": torch.zeros(guide.latent_dim)})()
    assert len(passes) == 1


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


def test_bad_noise_is_refused() -> None:
    neutra = NeuTraReparam(HyperNetworkGuide(model, generator=KINDS[1]).setup())
    with pytest.raises(ShapeError, match=r"expected \(\.\.\., 3\)"):
        neutra.transform_sample(torch.zeros(2))
    with pytest.raises(ArgumentError):
        neutra.transform_sample([0.0, 0.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        neutra.reparam(3)  # type: ignore[arg-type]
