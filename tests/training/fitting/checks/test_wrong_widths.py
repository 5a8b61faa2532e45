"""Deviations that importance weights know better than the guide are told; right ones are not."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, MMNNGuide, fit
from pyro_implicit.generators import AutoregressiveGenerator, BijectiveGenerator
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.ops.largest_tensor import LargestTensor
from pyro_implicit.training.fitting import fit as module
from pyro_implicit.training.fitting.checks import wrong_widths as widths
from pyro_implicit.training.fitting.checks.wrong_widths import wrong_widths


def model(deviation: float = 1.0) -> None:
    pyro.sample("x", dist.Normal(torch.zeros(2), deviation).to_event(1))
    pyro.sample("tau", dist.LogNormal(0.0, 0.3))


def guide_of(scale: float, of: Any = model) -> Any:
    """Normal in the unconstrained space, but for rounding."""
    guide = HyperNetworkGuide(of, init_from=None, init_scale=scale)
    guide()
    with torch.no_grad():
        for block in guide.samplers[0].generator.blocks:
            block.weight_out.zero_()
            block.bias_out.zero_()
            block.bias_out[2:4] = -100.0  # no steps
    return guide


def exact_ratio(scale: float) -> Any:
    """A model of two standard normal latents, and a guide whose deviation is ``scale``."""

    def normal() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    return normal, guide_of(scale, normal)


@pytest.mark.parametrize("kind", [AutoregressiveGenerator, BijectiveGenerator])
def test_draws_and_densities_are_those_of_the_guide(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some draws at a time, in one pass where the generator tells its determinant."""
    guide = HyperNetworkGuide(model, generator=kind, init_from=None).double().setup()
    fn = guide.samplers[0].distribution()
    monkeypatch.setattr(widths, "_MAX_NOISES_PER_CHUNK", 300 * fn.generator.output_dim)
    fixed = fn.given(fn.base_dist.sample((1000,)))
    passes, whole = [], AutoregressiveGenerator._pass
    counted = lambda *args: passes.append(1) or whole(*args)  # noqa: E731
    monkeypatch.setattr(AutoregressiveGenerator, "_pass", counted)
    with torch.no_grad():
        expected = fixed.rsample(), fn.base_dist.log_prob(fixed.noise) - fixed.half_log_det()
        passes.clear()
        monkeypatch.setattr(type(fn.base_dist), "sample", lambda *_: fixed.noise)
        found = widths._draws(guide, 1000)
    torch.testing.assert_close(found, expected)
    assert len(passes) == (4 if kind is AutoregressiveGenerator else 0)


@pytest.mark.long
@pytest.mark.parametrize(("scale", "ratio"), [(0.8, 1.25), (1.4, 0.714)])
def test_the_ratio_of_two_normal_distributions(scale: float, ratio: float) -> None:
    pyro.set_rng_seed(0)
    normal, guide = exact_ratio(scale)
    own = guide.sample(20_000)["x"].std(0)
    (told,) = wrong_widths(guide, normal, (), {})
    number = float(told.split("'x' (")[1].split(")")[0])
    assert number == pytest.approx(float((1 / own).mean()), rel=0.05)
    assert number == pytest.approx(ratio, rel=0.1)
    assert "refine(model, guide" in told and "vectorize_particles=True" in told
    (told,) = wrong_widths(guide, normal, (), {}, "vmap")
    assert "vectorize_particles='vmap'" in told


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.1])
def test_right_deviations_are_not_told(scale: float) -> None:
    pyro.set_rng_seed(1)
    normal, guide = exact_ratio(scale)
    assert wrong_widths(guide, normal, (), {}) == []


def test_weights_that_know_nothing_tell_that() -> None:
    """Of a guide that is nowhere near; its distance is 16.4 nats, of which few draws see a part."""
    pyro.set_rng_seed(2)
    normal, guide = exact_ratio(1e-4)
    (told,) = wrong_widths(guide, normal, (), {})
    far = float(told.split("at least ")[1].split()[0])
    assert 0.5 < far < 2 * (math.log(1e4) - 0.5) and "refine(model, guide" in told


@pytest.mark.long
@pytest.mark.parametrize("scale, is_told", [(0.9, False), (0.8, True)])
def test_a_small_distance_of_many_latents_is_not_told(
    scale: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth off in each of 200: 2.1 nats, at which weights are worth little."""

    def wide() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(200), 1.0).to_event(1))

    def drawn(_: Any, num_draws: int) -> tuple[torch.Tensor, torch.Tensor]:
        draws = scale * torch.randn(num_draws, 200)
        return draws, dist.Normal(0.0, scale).log_prob(draws).sum(-1)

    guide = HyperNetworkGuide(wide, init_from=None)
    guide()
    monkeypatch.setattr(widths, "_draws", drawn)
    exact = 200 * (0.5 * (scale**2 - 1) - math.log(scale))
    assert (exact > widths._MIN_NATS_PER_LATENT * 200) is is_told
    pyro.set_rng_seed(0)
    told = wrong_widths(guide, wide, (), {})
    assert any("at least" in text for text in told) is is_told
    if is_told:
        assert 0.5 * exact < float(told[0].split("at least ")[1].split()[0]) < exact


def test_no_distance_is_told_where_draws_have_no_density() -> None:
    assert widths._distance(torch.tensor([0.0, -math.inf])) == 0.0
    few = torch.tensor([0.0, -2.0]).double()
    exact = math.log((1 + math.exp(-2)) / 2) + 1
    assert widths._distance(few) == pytest.approx(exact)


def test_sites_are_told_apart() -> None:
    pyro.set_rng_seed(3)
    guide = guide_of(1.0)
    (told,) = wrong_widths(guide, model, (), {})
    # the deviation of a log-normal is that of exp(mu + s z)
    exact = math.sqrt(math.expm1(0.09) * math.exp(0.09) / (math.expm1(1.0) * math.e))
    assert f"'tau' ({exact:.1f}" in told and "'x'" not in told


@pytest.mark.long
def test_other_guides_larger_models_and_random_densities_are_not_looked_at() -> None:
    assert wrong_widths(AutoNormal(model), model, (), {}) == []
    assert wrong_widths(HyperNetworkGuide(model), model, (), {}) == []  # not built
    folding = MMNNGuide(model, init_from=None)
    folding()
    assert wrong_widths(folding, model, (), {}) == []
    guide = guide_of(1.0)

    def wide() -> None:
        pyro.sample("x", dist.Normal(0.0, 1.0).expand([1025]).to_event(1))

    large = HyperNetworkGuide(wide, init_from=None)
    large()
    assert wrong_widths(large, wide, (), {}) == []

    def refusing() -> None:
        raise ValueError("no")

    def branching() -> None:
        model(2.0 if float(pyro.sample("tau", dist.LogNormal(0.0, 0.3))) > 1 else 1.0)

    def coupled() -> None:
        model()
        pyro.factor("noise", torch.randn(()))

    for other in (refusing, branching, coupled):
        assert wrong_widths(guide, other, (), {}) == []


@pytest.mark.long
def test_a_fit_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_STEPS_TO_JUDGE_GUIDE", 5)
    normal, guide = exact_ratio(0.7)
    objective = LinearisedELBO(4, vectorize_particles=True)
    result = fit(normal, guide, objective=objective, num_steps=5, lr=1e-6, progress=False, seed=0)
    assert any("by importance weights" in text for text in result.warnings)


ROWS = 15_000
DATA = torch.randn(ROWS, generator=torch.Generator().manual_seed(0))


def of_a_dictionary(data: Any) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", ROWS):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=data["y"])


def of_a_closure() -> None:
    of_a_dictionary({"y": DATA})


def of_few_numbers(num_rows: int) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    pyro.factor("rows", dist.Normal(mean.expand(num_rows), 1.0).log_prob(torch.zeros(1)).sum())


def of_many_sites() -> None:
    """A time series, a row at a time: a trace keeps the draws of all rows."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    for step, row in enumerate(DATA.reshape(150, 100)):
        pyro.sample(f"y{step}", dist.Normal(mean.expand(100), 1.0).to_event(1), obs=row)


@pytest.mark.parametrize(
    ("large", "args"),
    [(of_a_dictionary, ({"y": DATA},)), (of_a_closure, ()), (of_few_numbers, (ROWS,))],
)
def test_data_are_counted_wherever_they_are(
    large: Any, args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 15 000 rows 40 000 draws at once would take 2.4 GB for each operation of the model."""
    for name in ("_MAX_NUMBERS_OF_MODEL", "_MIN_DRAWS", "_MAX_NUMBERS_PER_CHUNK"):
        monkeypatch.setattr(widths, name, getattr(widths, name) // 10)
    guide = guide_of(1.0, partial(large, *args))
    pyro.set_rng_seed(0)
    joint = LogJoint(large, guide.sites, args, {})
    with torch.no_grad(), LargestTensor() as largest:
        joint(torch.zeros(1))
    assert largest.numel == ROWS
    with LargestTensor() as all_draws:
        wrong_widths(guide, large, args, {})
    assert all_draws.numel <= widths._MAX_NUMBERS_PER_CHUNK


@pytest.mark.long
def test_many_small_sites_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widths, "_MAX_NUMBERS_OF_MODEL", widths._MAX_NUMBERS_OF_MODEL // 10)
    monkeypatch.setattr(widths, "_MIN_DRAWS", 1)
    guide = guide_of(1.0, of_many_sites)
    joint = LogJoint(of_many_sites, guide.sites, (), {})
    assert widths._size(joint, guide) > ROWS // 10


@pytest.mark.parametrize("weights", [{"kl_weight": 4.0}, {"prior_weight": 0.5}])
def test_what_is_not_after_the_posterior_is_not_held_to_it(
    weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guide of a tempered posterior is as wide as it should be."""
    monkeypatch.setattr(module, "_MIN_STEPS_TO_JUDGE_GUIDE", 5)
    normal, guide = exact_ratio(0.7)
    objective = LinearisedELBO(4, vectorize_particles=True, **weights)
    result = fit(normal, guide, objective=objective, num_steps=5, lr=1e-6, progress=False, seed=0)
    assert not any("by importance weights" in text for text in result.warnings)


def test_weights_that_single_precision_does_not_tell_are_told_in_double() -> None:
    """The factor is 0, as the Gamma function of c + 1 is c times that of c, and rounds by nats."""

    def rounding() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        c = (16.0 + x[..., 0]).exp()
        pyro.factor("none", torch.lgamma(c + 1) - torch.lgamma(c) - c.log())

    pyro.set_rng_seed(0)
    guide = guide_of(1.0, rounding)
    draws, _ = widths._draws(guide, 100)
    joint = LogJoint(rounding, list(guide.sites), (), {})
    single, double = (torch.stack([at(u) for u in draws]) for at in (joint, joint.in_double))
    assert (single - double).std() > 1
    assert wrong_widths(guide, rounding, (), {}) == []
    wrong = wrong_widths(guide_of(0.7, rounding), rounding, (), {})
    assert len(wrong) == 1 and "'x' (1." in wrong[0]


@pytest.mark.parametrize("left_out", [0, 1, 5])
def test_a_tail_of_infinite_variance_is_no_width(left_out: int) -> None:
    """Without its five farthest draws a Cauchy sample has another deviation, by ten times."""
    torch.manual_seed(0)
    draws = dist.Cauchy(0.0, 1.0).sample((10_000, 1)).double()
    weights = torch.full((10_000,), 1e-4, dtype=torch.float64)
    weights[draws[:, 0].abs().argsort()[10_000 - left_out :]] = 0.0
    ratio, _ = widths._ratios(draws, weights / weights.sum())
    assert float(ratio) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("df", [1.0, 2.0, 30.0])
def test_the_width_of_a_heavy_tail_is_told_by_its_bulk(df: float) -> None:
    """Draws of 0.7 times the width of the posterior."""
    torch.manual_seed(0)
    posterior, narrow = dist.StudentT(df, 0.0, 1.0), dist.StudentT(df, 0.0, 0.7)
    draws = narrow.sample((40_000, 1)).double()
    weights = (posterior.log_prob(draws) - narrow.log_prob(draws))[:, 0].softmax(0)
    ratio, _ = widths._ratios(draws, weights)
    assert 1.15 < float(ratio) < 1.8  # 1.43, but for what is cut


def test_draws_without_a_density_do_not_silence_the_look_in_double() -> None:
    def rounding() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        c = (16.0 + x[..., 0]).exp()
        pyro.factor("none", torch.lgamma(c + 1) - torch.lgamma(c) - c.log())
        pyro.factor("few", torch.where(x[..., 1] > 1.8, torch.nan, 0.0))

    pyro.set_rng_seed(0)
    wrong = wrong_widths(guide_of(0.6, rounding), rounding, (), {})
    assert len(wrong) == 1 and "'x' (1." in wrong[0]
