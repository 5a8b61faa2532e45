"""Chains as a guide, as a run that goes on, and as what they tell of themselves."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.chains import HMC, MCLMC, Chains
from pyro_implicit.exceptions import ArgumentError, DensityError, SiteError, StateError
from pyro_implicit.saving import load_state, save_state
from tests.chains.models import ROWS, X, Y, line, local, two_modes

KERNELS = {"mclmc": MCLMC(thin=3), "hmc": HMC()}


START = torch.tensor([[0.4, 1.9, -1.0], [0.5, 2.1, -1.2], [0.6, 2.0, -1.1]])


def run(kernel="mclmc", num_steps=60, start=START, model=line, args=(X, Y), **options):
    options = {"num_chains": 3, "num_warmup": 30, "seed": 5, "progress": False} | options
    kernel = KERNELS.get(kernel, kernel)
    return refine(model, start, *args, kernel=kernel, num_steps=num_steps, **options)


@pytest.fixture(scope="module")
def chains():
    with pyro.validation_enabled(True):
        return run("mclmc", 630)


def same(one, other):
    assert torch.equal(one.by_chain, other.by_chain)
    assert one.sample_stats.keys() == other.sample_stats.keys()
    for name, value in one.sample_stats.items():
        assert torch.equal(value, other.sample_stats[name]), name
    assert one.num_gradients == other.num_gradients and one.num_steps == other.num_steps


# ---- what they say of themselves


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_the_print_tells_how_exact_the_steps_are_by_the_kernels_own_measure(name):
    chains = run(name)
    told = chains.sample_stats
    if name == "hmc":
        how = f"acceptance rate {float(told['acceptance_rate'].double().mean()):.2g}"
        assert "squared energy error" not in str(chains)
    else:
        kept = told["energy_error"].double()[~told["diverging"]]
        how = f"squared energy error per latent {float(kept.square().mean()) / 3:.2g}"
    assert how in str(chains)


@pytest.mark.long
def test_a_refused_step_does_not_make_the_energy_error_of_the_others_enormous(chains):
    twin = copy.copy(chains)
    told = {name: value.clone() for name, value in chains.sample_stats.items()}
    told["diverging"][0, 0], told["energy_error"][0, 0] = True, 1e6
    twin.__class__ = type("Told", (Chains,), {"sample_stats": property(lambda self: told)})
    line = str(twin).splitlines()[1]
    assert float(line.split("per latent ")[1].split(",")[0]) < 1.0


# ---- the same bits


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore:the r-hat of latents")  # in so few steps
def test_a_seed_fixes_every_bit_and_moves_nothing_outside(name):
    before = torch.get_rng_state()
    first = run(name, 300)  # of any seed some gradients are left after the warm-up
    assert torch.equal(torch.get_rng_state(), before)
    same(first, run(name, 300))
    count = min(first.num_draws, (other := run(name, 300, seed=6)).num_draws)
    assert count and not torch.equal(first.by_chain[:, :count], other.by_chain[:, :count])


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_going_on_is_one_long_run_through_a_file_too(name, tmp_path):
    whole, parts = run(name), run(name, 42)
    save_state(parts.state_dict(), tmp_path / "chains.pt")
    loaded = Chains.from_state_dict(load_state(tmp_path / "chains.pt"), line, X, Y)
    same(loaded, parts)
    for one in (parts, loaded):
        assert one.run(18, progress=False) is one
        same(one, whole)


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("at", [20, 48])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(name, at, monkeypatch):
    whole = run(name)
    kernel = KERNELS[name]
    step = type(kernel).step
    told = []

    def interrupted(self, state, density, generator, tune):
        result = step(self, state, density, generator, tune)
        told.append(density.num_gradients)
        if len(told) == (at if name == "mclmc" else at // 10):
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(type(kernel), "step", interrupted)
    chains = run(name)
    assert chains.interrupted and 0 < chains.num_steps < 60 and "interrupted" in str(chains)
    chains.run(60 - chains.num_steps, progress=False)
    assert not chains.interrupted
    same(chains, whole)


@pytest.mark.parametrize("kind", ["adam", "lbfgs"])
def test_an_interrupted_search_for_modes_keeps_what_was_reached(kind, monkeypatch):
    from pyro_implicit.chains.density import ChainDensity

    count = iter(range(1000))

    def stop():
        if next(count) == 12:
            raise KeyboardInterrupt

    if kind == "lbfgs":
        import pyro_implicit.chains.modes as modes

        real = modes.maximise
        monkeypatch.setattr(
            modes, "maximise", lambda f, u, n: real(lambda v: (stop(), f(v))[1], u, n)
        )
        chains = run(start=2)
    else:
        call = ChainDensity.__call__
        monkeypatch.setattr(ChainDensity, "__call__", lambda self, u: (stop(), call(self, u))[1])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyro_implicit.chains.modes._MAX_LATENTS_FOR_CURVATURE", 1)
            chains = run(start=2)
    assert chains.interrupted and chains.num_steps == 0
    assert posterior_draws(chains, 5)["w"].shape == (5, 2)


@pytest.mark.long
def test_what_is_no_state_of_chains(chains):
    state = chains.state_dict()
    for bad, text in (
        (3, "not a state of Chains"),
        ({}, "cannot be taken up"),
        ({**state, "chains": 2}, "version 2"),
        ({**state, "kernel": {"kernel": "nuts"}}, "cannot be taken up"),
    ):
        with pytest.raises(StateError, match=text):
            Chains.from_state_dict(bad)


def test_chains_without_a_model_can_be_drawn_from_alone(chains):
    alone = Chains.from_state_dict(chains.state_dict())
    assert alone.sample(4)["w"].shape == (4, 2)
    with pytest.raises(StateError, match="loaded without a model"):
        alone.run(10)
    with pytest.raises(StateError, match="no model to predict with"):
        alone.predictive_r_hat(X)


# ---- a guide


def test_shapes_and_supports(chains):
    assert (chains.num_chains, chains.num_draws, chains.num_steps) == (3, 200, 630)
    assert {n: tuple(v.shape) for n, v in chains.draws.items()} == {
        "w": (3, 200, 2),
        "sigma": (3, 200),
    }
    assert chains.unconstrained.shape == (600, 3) and bool((chains.draws["sigma"] > 0).all())
    told = chains.sample_stats
    assert set(told) == {"lp", "energy_error", "step_size", "diverging"}
    assert all(value.shape == (3, 200) for value in told.values())
    assert set(run("hmc").sample_stats) == {*told, "acceptance_rate", "n_steps"}


def test_draws_are_those_that_were_kept(chains):
    kept = {tuple(row) for row in chains.draws["w"].flatten(0, 1).tolist()}
    drawn = chains.sample(600)["w"].tolist()
    assert {tuple(row) for row in drawn} == kept  # each once
    assert {tuple(row) for row in chains.sample(1300)["w"].tolist()} == kept
    assert tuple(chains()["w"].tolist()) in kept


def test_vectorised_draws_under_a_plate(chains):
    with pyro.plate("particles", 5, dim=-2):
        values = chains(X)
    assert values["w"].shape == (5, 1, 2) and values["sigma"].shape == (5, 1)
    kept = {tuple(row) for row in chains.draws["w"].flatten(0, 1).tolist()}
    assert {tuple(row) for row in values["w"].reshape(-1, 2).tolist()} <= kept


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the r-hat of latents")
def test_latents_of_rows_are_in_their_plates():
    chains = run(model=local, args=(Y,), start=torch.zeros(3, 13))
    with poutine.trace() as watcher:
        chains(Y)
    (frame,) = watcher.trace.nodes["mean"]["cond_indep_stack"]
    assert (frame.name, frame.size) == ("rows", 12)
    assert predict(local, chains, Y, num_samples=3)["y"].shape == (3, 12)


def test_it_serves_all_that_draws(chains):
    assert predict(line, chains, X, num_samples=7)["y"].shape == (7, 12)
    moments = predict(line, chains, X, num_samples=64, parallel=True, moments=True, sites=["mean"])
    assert (moments["mean"][0] - Y).abs().max() < 0.6
    assert posterior_draws(chains, 9, X, Y)["w"].shape == (9, 2)
    score = log_predictive_density(line, chains, X, Y, num_samples=20, seed=0)
    assert score.shape == (12,) and -1.5 < float(score.mean()) < 0.5
    assert evaluate(line, chains, X, Y, num_samples=20, seed=0).log_density.value > -1.5


def test_no_objective_trains_it(chains):
    with pytest.raises(DensityError, match="chains have no density"):
        Trace_ELBO().loss(line, chains, X, Y)


def test_a_chain_each(chains):
    parts = chains.split()
    assert len(parts) == 3 and all(part.num_chains == 1 for part in parts)
    torch.testing.assert_close(torch.cat([part.by_chain for part in parts]), chains.by_chain)
    assert parts[1].sample_stats["lp"].shape == (1, 200)


def test_a_part_that_was_saved_is_drawn_from_and_does_not_go_on(chains):
    part = chains.split()[1]
    again = Chains.from_state_dict(copy.deepcopy(part.state_dict()), line, X, Y)
    assert torch.equal(again.by_chain, chains.by_chain[1:2]) and again.num_chains == 1
    assert again.predictive_effective_size(X, num_samples=8)["y"].shape == (12,)
    for one in (part, again):
        with pytest.raises(StateError, match=r"one chain of chains.split\(\), which cannot go on"):
            one.run(10, progress=False)


def test_another_model_is_told_by_its_latents(chains):
    state, before = chains.state_dict(), torch.get_rng_state()
    Chains.from_state_dict(state, line, X, Y)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(StateError, match=r"'w': \(2,\), 'sigma': \(\)}.*{'scale': \(\), 'mean'"):
        Chains.from_state_dict(state, local, Y)
    rows = run("mclmc", 0, torch.zeros(3, 13), local, (Y,), num_warmup=None)
    with pytest.raises(StateError, match=r"'mean': \(12,\)}.*'mean': \(5,\)}"):
        Chains.from_state_dict(rows.state_dict(), local, Y[:5])


@pytest.mark.long
def test_double_precision_on_request_and_draws_of_the_models_own():
    chains = run(dtype=torch.float64)
    assert chains.by_chain.dtype == torch.float64
    assert chains.draws["w"].dtype == torch.float32
    assert predict(line, chains, X, num_samples=2)["y"].dtype == torch.float32
    again = Chains.from_state_dict(copy.deepcopy(chains.state_dict()))
    assert again.draws["w"].dtype == torch.float32


@pytest.mark.long
def test_num_steps_of_zero_are_the_modes():
    chains = run(num_steps=0, num_warmup=None, start=2)
    assert chains.num_draws == 0 and chains.draws["w"].shape == (3, 1, 2)
    one = chains.split()[0]
    assert to_arviz(line, one, X, Y, groups=["posterior"]).posterior.sizes["draw"] == 1


# ---- ArviZ


@pytest.mark.long
def test_real_chains_for_arviz(chains):
    groups = ["posterior", "log_likelihood", "posterior_predictive", "sample_stats"]
    data = to_arviz(line, chains, X, Y, groups=groups)
    assert dict(data.posterior.sizes) == {"chain": 3, "draw": 200, "w_dim_0": 2, "data": 12}
    torch.testing.assert_close(
        torch.from_numpy(data.posterior["w"].values), chains.draws["w"], check_dtype=False
    )
    assert data.log_likelihood["y"].shape == data.posterior_predictive["y"].shape == (3, 200, 12)
    # each draw with its own likelihood
    sigma, w = chains.draws["sigma"][2, 17], chains.draws["w"][2, 17]
    expected = torch.distributions.Normal(w[0] + w[1] * X, sigma).log_prob(Y).double()
    found = torch.from_numpy(data.log_likelihood["y"].values[2, 17])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert set(data.sample_stats) == {"lp", "energy_error", "step_size", "diverging"}
    assert json.loads(data.attrs["kernel_settings"])["num_warmup"] == 30
    assert data.attrs["num_gradients"] == chains.num_gradients


def test_fewer_draws_for_arviz_are_evenly_spaced(chains):
    data = to_arviz(line, chains, X, Y, num_samples=12, groups=["posterior", "sample_stats"])
    assert data.posterior.sizes["draw"] == data.sample_stats.sizes["draw"] == 4
    torch.testing.assert_close(
        torch.from_numpy(data.posterior["sigma"].values),
        chains.draws["sigma"][:, [49, 99, 149, 199]],
    )


# ---- agreement


@pytest.mark.long
def test_chains_of_one_mode_agree(chains):
    r_hat, size = chains.r_hat(), chains.effective_size()
    assert r_hat["w"].shape == (2,) and float(r_hat["w"].max()) < 1.1
    assert 50 < float(size["w"].min()) < 1000 and size["sigma"].shape == ()
    predicted = chains.predictive_r_hat(X, num_samples=150)
    assert predicted["y"].shape == (12,) and float(predicted["y"].max()) < 1.1
    sizes = chains.predictive_effective_size(X, sites=["mean"], num_samples=30)
    assert sizes["mean"].shape == (12,)


@pytest.mark.long
def test_the_print_says_where_agreement_is_to_be_looked_for(chains, monkeypatch):
    assert "r-hat of latents up to 1.0" in str(chains)
    assert "r-hat" not in str(chains.split()[0])
    monkeypatch.setattr("pyro_implicit.chains.result._MAX_LATENTS_FOR_R_HATS", 2)
    assert str(chains).endswith("whether they agree: chains.r_hat()")

    def network(x: torch.Tensor, y: torch.Tensor) -> None:
        first = pyro.sample("first", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        second = pyro.sample("second", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        with pyro.plate("data", ROWS):
            mean = (torch.tanh(x[:, None] @ first) @ second).squeeze(-1)
            pyro.sample("y", dist.Normal(mean, 0.3), obs=y)

    start = torch.tensor([[9.0, 0.0, 9.0, 0.0], [0.0, 9.0, 0.0, 9.0]])
    found = run(MCLMC(step_size=0.001, thin=1), 90, start, network, num_chains=2)
    assert found.num_draws >= 50  # and nothing was said of their weights
    assert str(found).endswith("whether they agree: chains.predictive_r_hat(x_test)")


@pytest.mark.long
def test_chains_that_disagree_warn():
    start = torch.tensor([[2.0, 0.0], [2.0, 0.0], [-2.0, 0.0]])
    with pytest.warns(UserWarning, match="r-hat of latents is up to"):  # ten draws of each
        chains = run(MCLMC(step_size=0.02, thin=3), 60, start, two_modes, ())
    with pytest.warns(UserWarning, match="r-hat of latents is up to .* have not mixed.*predictive"):
        found = chains.r_hat()
    assert float(found["x"][0]) > 1.5


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the r-hat of latents")
def test_predictions_that_disagree_warn():
    start = {"w": torch.tensor([[5.0, 0.0], [-5.0, 0.0], [0.0, 9.0]]), "sigma": torch.ones(3)}
    chains = run(MCLMC(step_size=1e-4, thin=3), 60, start)
    with pytest.warns(UserWarning, match="r-hat of predictions is up to .*chains.run"):
        chains.predictive_r_hat(X)


def test_too_few_draws_to_compare():
    chains = run(num_steps=39)
    assert chains.num_draws == 3
    with pytest.raises(StateError, match=r"has 3 draws; rhat needs 4.*chains.run\(1000\)"):
        chains.r_hat()
    with pytest.raises(StateError, match="ess needs 4"):
        chains.effective_size()


# ---- bad input


@pytest.mark.long
def test_bad_arguments(chains):
    with pytest.raises(ArgumentError, match="num_warmup=300 of num_steps=60"):
        run(num_warmup=300)
    with pytest.raises(ArgumentError, match="num_warmup=0 leaves the step size untuned"):
        run(num_warmup=0)
    for bad in ({"num_chains": 0}, {"num_steps": -1}, {"mode_steps": 0}, {"dispersion": -1.0}):
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            run(**bad)
    with pytest.raises(ArgumentError, match="dtype=torch.float16; expected"):
        run(dtype=torch.float16)
    for bad in (0, 1.5):
        with pytest.raises(ArgumentError, match="num_steps"):
            chains.run(bad)
        with pytest.raises(ArgumentError, match="num_samples"):
            chains.sample(bad)
    with pytest.raises(ArgumentError, match="sites"):
        chains.predictive_r_hat(X, sites="mean")
    with pytest.raises(SiteError, match=r"sites \['z'\] are not in the model"):
        chains.predictive_r_hat(X, sites=["z"])


@pytest.mark.long
def test_the_bar_shows_the_phase(capsys):
    run(num_steps=120, progress=True)
    assert "sampling, lp" in capsys.readouterr().err


@pytest.mark.long
def test_chains_that_disagree_are_told_when_they_end() -> None:
    """Each of two modes has chains that never leave it."""

    def far() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 20.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.factor("modes", -((x.abs() - 10.0) ** 2) * 50 - b**2)

    start = torch.tensor([[-10.0, 0.0], [-10.0, 0.1], [10.0, 0.0], [10.0, 0.1]])
    options = {"num_chains": 4, "num_warmup": 100, "num_steps": 1500, "seed": 0}
    with pytest.warns(UserWarning, match=r"r-hat of latents is up to .* \(site 'x'") as caught:
        found = refine(far, start, progress=False, **options)
    assert [one.filename for one in caught] == [__file__]
    assert "r-hat of latents up to" in str(found) and "('x')" in str(found)


def test_one_chain_has_no_r_hat(chains):
    for one in chains.split():
        with pytest.raises(StateError, match="there is one chain"):
            one.r_hat()


@pytest.mark.long
def test_what_the_fit_observed_may_be_left_out_to_be_predicted():
    """One of two observations is given, the other predicted: it is no latent that was forgotten."""

    def model(x, z, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(x * w[..., :1], 1.0), obs=z)
            pyro.sample("y", dist.Normal(x * w[..., 1:], 1.0), obs=y)

    x = torch.linspace(-1.0, 1.0, 6)
    told = refine(model, 3, x, x, x, num_steps=0, progress=False, seed=0)
    loaded = Chains.from_state_dict(told.state_dict())
    pair = EnsembleGuide([HyperNetworkGuide(model).setup(x, x, x) for _ in range(2)])
    for guide in (told, told.split()[0], loaded, pair):
        assert predict(model, guide, x, x, num_samples=3)["y"].shape[-1] == 6


@pytest.mark.long
def test_chains_of_another_kind_of_device_go_on_with_other_numbers(chains):
    """A generator of CUDA has a state of 16 bytes, which no generator of the CPU can take."""
    state = copy.deepcopy(chains.state_dict())
    state["progress"]["random"] = torch.arange(16, dtype=torch.uint8)
    read = Chains.from_state_dict(copy.deepcopy(state))  # to draw from: nothing to tell
    same(read, chains)
    with pytest.warns(UserWarning, match="another kind of device: they go on where they were"):
        one = Chains.from_state_dict(copy.deepcopy(state), line, X, Y)
    with pytest.warns(UserWarning, match="another kind of device"):
        other = Chains.from_state_dict(state, line, X, Y)
    one.run(30, progress=False)
    other.run(30, progress=False)
    same(one, other)


def test_after_an_error_of_the_model_as_many_steps_are_taken_as_are_asked_for() -> None:
    breaks = [False]

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        if breaks[0]:
            raise OSError("disk hiccup")
        pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=torch.tensor(0.0))

    options = {"num_warmup": 50, "seed": 0, "progress": False}
    chains = refine(model, 2, num_steps=100, **options)
    before = chains.num_steps
    breaks[0] = True
    with pytest.raises(OSError, match="hiccup"):
        chains.run(1000, progress=False)
    breaks[0] = False
    chains.run(100, progress=False)
    assert chains.num_steps < before + 200


@pytest.mark.parametrize("parallel", [False, True])
def test_they_are_a_guide_of_latents_that_share_a_plate(parallel: bool) -> None:
    """A plate is a statement of its own, made once: Pyro refuses a second of its name."""

    def model(y: Any = None) -> None:
        with pyro.plate("groups", 3, dim=-2):
            mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.3))
            with pyro.plate("rows", 2, dim=-1):
                pyro.sample("y", dist.Normal(mean, scale), obs=y)

    options: Any = {"num_chains": 2, "kernel": "hmc", "num_steps": 40, "progress": False}
    chains = refine(model, torch.zeros(2, 6), torch.randn(3, 2), seed=0, **options)
    nodes = poutine.trace(chains).get_trace().nodes
    assert [frame.name for frame in nodes["scale"]["cond_indep_stack"]] == ["groups"]
    draws = Predictive(model, guide=chains, num_samples=5, parallel=parallel)()
    assert draws["y"].shape == (5, 3, 2) and draws["scale"].shape[-2:] == (3, 1)


@pytest.mark.parametrize("name", ["predictive_r_hat", "predictive_effective_size"])
def test_a_bad_call_of_the_model_is_explained(chains, name):
    with pytest.raises(ArgumentError, match="missing 1 required positional argument: 'x'. Hand ov"):
        getattr(chains, name)()
    with pytest.raises(ArgumentError, match=f"of {name} nor an arg.*Did you mean num_samples="):
        getattr(chains, name)(X, num_sample=3)
