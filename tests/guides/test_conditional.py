"""ConditionalHyperNetworkGuide: rows with laws of their own, drawn, trained and saved."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    entropy_report,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    to_arviz,
)
from pyro_implicit import _memory as memory
from pyro_implicit.exceptions import (
    ArgumentError,
    DensityError,
    GuideError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
    SiteError,
    StateError,
)
from pyro_implicit.generators import ConditionalAutoregressiveGenerator, MLPGenerator
from pyro_implicit.objectives import IWAE

ROWS = 12
X = torch.linspace(-1, 1, ROWS)[:, None]
Y = (3 * X[:, 0]).sin()


def make_model(size: int = ROWS, layers: nn.Module | None = None):
    net = BayesianModule(layers or nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), local=True)

    def model(x, y=None):
        with pyro.plate("data", size, subsample_size=len(x)):
            f = net(x).squeeze(-1)
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    return model


def conjugate(size: int = ROWS):
    """Local latents with a known posterior: N(0, 1) observed with noise 0.5."""

    def model(y, full=size):
        with pyro.plate("data", full, subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 0.5), obs=y)

    return model


def test_each_row_is_made_from_its_context_and_a_noise_of_its_own() -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), scale=0.0, noise_dim=3).setup(X, Y)
    nodes = poutine.trace(guide).get_trace(X).nodes
    name = f"_{guide._pyro_name}_latent"
    noise, flat = nodes[f"{name}_noise"]["value"], nodes[name]["value"]
    assert (noise.shape, flat.shape) == ((ROWS, 3), (ROWS, 2))
    inner = guide.samplers[0].generator
    loc = guide.samplers[0].preconditioner.loc
    expected = inner(torch.cat([noise, X], -1)) + loc
    torch.testing.assert_close(flat, expected)
    torch.testing.assert_close(nodes["weight"]["value"][:, 0, 0], flat[:, 0])
    torch.testing.assert_close(nodes["bias"]["value"][:, 0], flat[:, 1])
    assert nodes["weight"]["fn"].log_density.eq(0).all()


@pytest.mark.parametrize("particles", [1, 5])
def test_shared_noise_makes_one_function_of_the_context(particles: int) -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), scale=0.0, shared_noise=True).setup(X, Y)
    twice = torch.cat([X[:3], X[:3]])
    with pyro.plate("particles", particles, dim=-2):
        values = guide(twice)["weight"]
    torch.testing.assert_close(values[..., :3, :, :], values[..., 3:, :, :])
    assert values[..., 0, 0, 0].unique().numel() == particles
    own = ConditionalHyperNetworkGuide(make_model()).setup(X, Y)(twice)["weight"]
    assert not torch.isclose(own[:3], own[3:]).any()


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True])
def test_sample_and_forward_agree_in_law_and_depend_on_x(shared: bool) -> None:
    pyro.set_rng_seed(0)
    guide = ConditionalHyperNetworkGuide(make_model(), shared_noise=shared, init_scale=0.5)
    guide.setup(X, Y)
    generator = guide.samplers[0].generator
    with torch.no_grad():
        if shared:
            generator.skip_dense += 0.5
        else:
            generator.reader[0].weight *= 10
            generator.blocks[-1].weight_out += 0.1 * torch.randn(8, 2, 40)
    drawn = guide.sample(4000, X)["weight"][..., 0, 0]
    assert drawn.shape == (4000, ROWS)
    with pyro.plate("particles", 4000, dim=-2), torch.no_grad():
        other = guide(X)["weight"][..., 0, 0]
    torch.testing.assert_close(drawn.mean(0), other.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(drawn.std(0), other.std(0), rtol=0.1, atol=0)
    assert (drawn.mean(0)[-1] - drawn.mean(0)[0]).abs() > 0.1
    correlation = torch.corrcoef(drawn[:, :2].T)[0, 1]
    assert correlation > 0.9 if shared else abs(correlation) < 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearisedELBO(4, vectorize_particles=True),
        # with one noise it is the one above, by tests/objectives/test_lanczos.py
        pytest.param(lambda: LanczosELBO(4, vectorize_particles=True), marks=pytest.mark.slow),
        lambda: SemiImplicitELBO(4, num_inner=10, vectorize_particles=True),
    ],
)
def test_with_an_entropy_it_is_an_amortised_posterior(make) -> None:
    """Local conjugate latents: mean 0.8 y, standard deviation sqrt(0.2), for every y."""
    pyro.set_rng_seed(0)
    y = torch.linspace(-2, 2, ROWS)
    model = conjugate()
    semi = isinstance(make(), SemiImplicitELBO)
    guide = ConditionalHyperNetworkGuide(model, hidden_dims=(8,), scale=0.3 if semi else 0.0)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / 200)})
    svi = SVI(model, guide, optimiser, make())
    for step in range(200):
        svi.step(y[(step % 2) :: 2])
    draws = guide.sample(2000, torch.tensor([-1.5, 0.2, 1.1]))["z"]
    torch.testing.assert_close(draws.mean(0), torch.tensor([-1.2, 0.16, 0.88]), rtol=0, atol=0.12)
    torch.testing.assert_close(
        draws.std(0), torch.full((3,), math.sqrt(0.2)), rtol=0.2 if semi else 0.12, atol=0
    )


@pytest.mark.long
def test_by_default_the_map_of_a_row_cannot_fold_and_its_bound_is_exact() -> None:
    """The loss reaches minus the log evidence of local conjugate latents, and stays above."""
    pyro.set_rng_seed(0)
    y, model = torch.linspace(-2, 2, ROWS), conjugate()
    guide = ConditionalHyperNetworkGuide(model)
    elbo = LinearisedELBO(8, vectorize_particles=True)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.02 ** (1 / 100)}), elbo)
    for _ in range(100):
        svi.step(y)
    assert type(guide.samplers[0].generator) is ConditionalAutoregressiveGenerator
    evidence = float(dist.Normal(0.0, math.sqrt(1.25)).log_prob(y).sum())
    losses = [LinearisedELBO(500, vectorize_particles=True).loss(model, guide, y) for _ in range(4)]
    loss, error = sum(losses) / 4, 2 * math.sqrt(0.5 * ROWS / 2000)
    assert -evidence - error < loss < -evidence + 0.15
    draws = guide.sample(4000, torch.tensor([-1.5, 0.2, 1.1]))["z"]
    torch.testing.assert_close(draws.mean(0), torch.tensor([-1.2, 0.16, 0.88]), rtol=0, atol=0.1)
    torch.testing.assert_close(draws.std(0), torch.full((3,), math.sqrt(0.2)), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_dims": (4,)},
        {"noise_dim": 3},
        {"activation": "tanh"},
        {"scale": 0.1},
        {"learn_scale": "scalar", "scale": 0.1},
        {"shared_noise": True},
    ],
)
def test_options_of_a_perceptron_make_one(options) -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), **options).setup(X, Y)
    assert type(guide.samplers[0].generator) is MLPGenerator


@pytest.mark.long
def test_counts_of_any_size_can_be_the_context() -> None:
    """Without units of their own the first draws were so far out that no step had a finite loss."""
    pyro.set_rng_seed(0)
    y = dist.Poisson(torch.exp(3 * torch.randn(60, 2))).sample()

    def model(y):
        with pyro.plate("data", 60, subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
            return pyro.sample("y", dist.Poisson(z.exp()).to_event(1), obs=y)

    assert float(y.max()) > 100
    guide = ConditionalHyperNetworkGuide(model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.01}), LinearisedELBO(2))
    losses = [svi.step(y) for _ in range(60)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    other = ConditionalHyperNetworkGuide(model).setup(y[:5])
    other.load_state_dict(guide.state_dict())  # with the units
    pyro.set_rng_seed(1)
    drawn = guide.sample(3, y[:7])["z"]
    pyro.set_rng_seed(1)
    torch.testing.assert_close(other.sample(3, y[:7])["z"], drawn)


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_guide_built_on_a_minibatch_serves_all_rows(vectorised: bool, is_loaded: bool) -> None:
    """It once took all rows for those that the model would choose a minibatch from."""
    pyro.set_rng_seed(0)
    y, model = torch.linspace(-2, 2, ROWS), conjugate()
    # near one point, so that few draws tell
    guide = ConditionalHyperNetworkGuide(model, init_scale=0.1).setup(y[:4])
    if is_loaded:
        state = guide.state_dict()
        guide = ConditionalHyperNetworkGuide(model)
        guide.load_state_dict(state)
    assert guide(y)["z"].shape == (ROWS,)
    count = 500 if vectorised else 20
    objective = LinearisedELBO(count, vectorize_particles=vectorised, max_plate_nesting=1)
    whole = objective.loss(model, guide, y)
    parts = [objective.loss(model, guide, y[i : i + 4]) for i in (0, 4, 8)]
    assert abs(whole - sum(parts) / 3) < 20 / math.sqrt(count)  # of 60
    with pytest.warns(UserWarning, match="makes its latents from what"):
        assert log_predictive_density(model, guide, y, num_samples=5).shape == (ROWS,)
    drawn = Predictive(model, guide=guide, num_samples=3)(y)
    assert drawn["z"].reshape(3, -1).shape == (3, ROWS)


@pytest.mark.long
def test_a_context_of_its_own_is_not_forgotten_without_a_word() -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), context=lambda x, y=None: x.flip(0))
    guide.setup(X, Y)
    copied = pickle.loads(pickle.dumps(guide))
    other = ConditionalHyperNetworkGuide(make_model())
    other.load_state_dict(guide.state_dict())
    for lost in (copied, other):
        with pytest.raises(StateError, match="a context function of its own, which is not stored"):
            lost.sample(2, X)
    found = ConditionalHyperNetworkGuide(make_model(), context=lambda x, y=None: x.flip(0))
    found.load_state_dict(guide.state_dict())
    for one in (guide, found):
        pyro.set_rng_seed(3)
        one.sampled = one.sample(2, X)["weight"]
    torch.testing.assert_close(found.sampled, guide.sampled)


def test_rows_of_many_latents_have_a_perceptron() -> None:
    wide = make_model(layers=nn.Sequential(nn.Linear(1, 11), nn.Tanh(), nn.Linear(11, 1)))
    guide = ConditionalHyperNetworkGuide(wide).setup(X, Y)
    assert guide.latent_dim == 34 and type(guide.samplers[0].generator) is MLPGenerator


def test_the_linearised_elbo_of_a_linear_guide_is_exact_on_a_minibatch() -> None:
    """Against Trace_ELBO of the same law written by hand, scale of the minibatch included."""
    model = conjugate(100)
    guide = ConditionalHyperNetworkGuide(model, hidden_dims=(2,), scale=0.0, activation="identity")
    y = torch.tensor([-0.5, 0.3, 1.0])
    guide.setup(y)
    with torch.no_grad():
        joined = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        values = guide.samplers[0].generator(joined)[:, 0] + guide.samplers[0].preconditioner.loc
    shift, slope, tilt = values[0], values[1] - values[0], values[2] - values[0]

    def explicit(y, full=100):
        with pyro.plate("data", full, subsample_size=len(y)):
            pyro.sample("z", dist.Normal(shift + tilt * y, slope.abs()))

    losses = []
    for objective, law in (
        (LinearisedELBO(20_000, vectorize_particles=True), guide),
        (Trace_ELBO(20_000, vectorize_particles=True), explicit),
    ):
        pyro.set_rng_seed(0)
        losses.append(objective.loss(model, law, y))
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


def test_a_model_that_chooses_its_rows_itself() -> None:
    def model(x):
        with pyro.plate("data", len(x), subsample_size=4) as index:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 0.5), obs=x[index, 0])

    guide = ConditionalHyperNetworkGuide(model, scale=0.0).setup(X)
    trace = poutine.trace(guide).get_trace(X)
    index = trace.nodes["data"]["value"]
    assert trace.nodes["z"]["value"].shape == index.shape == (4,)
    noise = trace.nodes[f"_{guide._pyro_name}_latent_noise"]["value"]
    sampler = guide.samplers[0]
    expected = sampler.generator(torch.cat([noise, X[index]], -1)) + sampler.preconditioner.loc
    torch.testing.assert_close(trace.nodes["z"]["value"], expected[:, 0])
    assert math.isfinite(LinearisedELBO(2).loss(model, guide, X))


@pytest.mark.long
def test_a_context_network_is_trained_and_labels_can_be_a_context() -> None:
    def model(x, label, y=None):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 0.1), obs=y)

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2, 3)

        def forward(self, x, label, y=None):
            return torch.cat([x, self.table(label)], -1)

    label = torch.arange(ROWS) % 2
    guide = ConditionalHyperNetworkGuide(model, context=Embed(), scale=0.0, hidden_dims=(8,))
    y = 2.0 * label - 1
    pyro.set_rng_seed(0)
    svi = SVI(
        model,
        guide,
        pyro.optim.Adam({"lr": 0.1}),
        PosteriorPredictiveLoss(5, vectorize_particles=True),
    )
    before = guide.context_network.table.weight.clone()
    for _ in range(60):
        svi.step(X, label, y)
    assert not torch.equal(guide.context_network.table.weight, before)
    means = guide.sample(200, X, label)["z"].mean(0)
    torch.testing.assert_close(means, y, rtol=0, atol=0.2)


@pytest.mark.long
def test_predictions_come_from_each_row_whatever_the_batch_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_implicit.handlers.rows.row_coupling._MAX_NUMBERS_OF_SMALL_RUN", 0)
    x = torch.linspace(-2, 2, 100)[:, None]
    model = make_model(100)
    for shared in (False, True):
        guide = ConditionalHyperNetworkGuide(model, shared_noise=shared, scale=0.05)
        guide.setup(x, x[:, 0])
        runs = []
        for options in ({}, {"batch_size": 32}, {"parallel": True}):
            pyro.set_rng_seed(0)
            runs.append(predict(model, guide, x, num_samples=6, sites=["y", "weight"], **options))
        assert runs[0]["y"].shape == (6, 100)
        assert runs[0]["weight"].shape == (6, 100, 1, 1)
        for name in ("y", "weight"):
            assert torch.equal(runs[0][name], runs[1][name])
            assert runs[2][name].shape == runs[0][name].shape
        many = predict(model, guide, x, num_samples=400, sites=["weight"], parallel=True)
        torch.testing.assert_close(
            many["weight"].mean(0), guide.sample(400, x)["weight"].mean(0), rtol=0, atol=0.05
        )
        if shared:  # smooth in x but for the output noise of 0.05
            jumps = many["weight"][:, 1:] - many["weight"][:, :-1]
            assert jumps.std() < 2 * 0.05


def test_posterior_draws_read_the_context() -> None:
    guide = ConditionalHyperNetworkGuide(make_model()).setup(X, Y)
    assert posterior_draws(guide, 7, X)["weight"].shape == (7, ROWS, 1, 1)
    assert guide.median(X, num_samples=20)["bias"].shape == (ROWS, 1)
    with pytest.raises(ArgumentError, match="was called without any"):
        guide.sample(3)
    with pytest.raises(ArgumentError, match="num_samples=0"):
        guide.sample(0, X)


def test_beside_global_latents_in_a_list() -> None:
    net = BayesianModule(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), local=True)

    def model(x, y=None):
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        with pyro.plate("data", len(x)):
            f = net(x).squeeze(-1)
            return pyro.sample("y", dist.Normal(f, sigma), obs=y)

    with pytest.raises(SiteError, match="'sigma' is in no plate"):
        ConditionalHyperNetworkGuide(model).setup(X, Y)
    guide = AutoGuideList(model)
    guide.append(ConditionalHyperNetworkGuide(poutine.block(model, hide=["sigma"]), scale=0.05))
    guide.append(AutoNormal(poutine.block(model, expose=["sigma"])))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), LinearisedELBO(2))
    assert all(math.isfinite(svi.step(X, Y)) for _ in range(3))


# ---- refusals


def test_an_ordinary_elbo_raises() -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), scale=0.1)
    with pytest.raises(DensityError, match="LinearisedELBO"):
        SVI(make_model(), guide, pyro.optim.Adam({}), Trace_ELBO()).step(X, Y)


@pytest.mark.parametrize("objective", [LinearisedELBO(), KernelDensityRatioELBO(num_samples=10)])
def test_rows_that_share_noise_have_no_entropy_that_anyone_knows(objective) -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), shared_noise=True, scale=0.1).setup(X, Y)
    with pytest.raises(GuideError, match="share one noise.*shared_noise=False"):
        objective.loss(make_model(), guide, X, Y)
    assert math.isfinite(PosteriorPredictiveLoss(2).loss(make_model(), guide, X, Y))


@pytest.mark.parametrize("size", [ROWS, 3 * ROWS])
@pytest.mark.parametrize("vectorize_particles", [False, True])
def test_a_law_for_each_row_is_not_compared_with_the_prior(size, vectorize_particles) -> None:
    model = make_model(size)
    guide = ConditionalHyperNetworkGuide(model, scale=0.1)
    objective = KernelDensityRatioELBO(
        num_samples=10, contrast="prior", vectorize_particles=vectorize_particles
    )
    message = (
        "prior draws of latents .*conditional guide.*a distribution for each row.*or all.*adaptive"
    )
    with pytest.raises(SiteError, match=message):
        objective.loss(model, guide, X, Y)


def test_a_plate_of_the_minibatch_is_told_from_one_of_all_data() -> None:
    model = conjugate()
    guide = ConditionalHyperNetworkGuide(model, scale=0.0).setup(Y)
    with pytest.raises(SiteError, match="'data', which has 6 rows in all in the model and 12"):
        LinearisedELBO().loss(model, guide, Y[:6], 6)
    assert math.isfinite(LinearisedELBO().loss(model, guide, Y[:6]))
    assert math.isfinite(PosteriorPredictiveLoss(2).loss(model, guide, Y[:6], 6))


def test_gauss_newton_proposals_are_for_one_law() -> None:
    model = conjugate()
    guide = ConditionalHyperNetworkGuide(model, scale=0.1).setup(Y)
    with pytest.raises(GuideError, match="is conditional.*proposal='prior'"):
        SemiImplicitELBO(proposal="gauss-newton").loss(model, guide, Y)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="init_from is one Gaussian"):
        ConditionalHyperNetworkGuide(make_model(), init_from="laplace")
    with pytest.raises(ArgumentError, match="context=3"):
        ConditionalHyperNetworkGuide(make_model(), context=3)
    guide = ConditionalHyperNetworkGuide(make_model()).setup(X, Y)
    with pytest.raises(ShapeError, match="2 entries per row; the guide was built with 1"):
        guide(torch.zeros(3, 2))


def test_rows_whose_context_is_not_finite_are_named() -> None:
    model = make_model()
    guide = ConditionalHyperNetworkGuide(model).setup(X, Y)
    gaps = X.clone()
    gaps[2] = math.nan
    with pytest.raises(NonFiniteError, match="context of 1 of .* rows is not finite.* row 2"):
        guide.sample(3, gaps)
    with pytest.raises(NonFiniteError, match="not finite"):
        predict(model, guide, gaps, num_samples=3)
    assert guide.sample(3, X)


def test_two_plates_of_rows() -> None:
    def model(x):
        for name in ("a", "b"):
            with pyro.plate(name, len(x)):
                pyro.sample(f"z_{name}", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match=r"plates \['a', 'b'\].*one plate of rows"):
        ConditionalHyperNetworkGuide(model).setup(X)


def test_a_plate_with_other_rows_than_the_context() -> None:
    guide = ConditionalHyperNetworkGuide(
        make_model(), create_plates=lambda x, y=None: pyro.plate("data", ROWS, subsample_size=5)
    ).setup(X, Y)
    assert guide(X)["weight"].shape == (5, 1, 1)  # rows of the guide's own choice
    with pytest.raises(ShapeError, match="context has 3 rows, but plate 'data' shows 5 of 12"):
        guide(X[:3])


@pytest.mark.long
def test_more_rows_than_memory_can_hold(monkeypatch) -> None:
    guide = ConditionalHyperNetworkGuide(make_model()).setup(X, Y)
    monkeypatch.setattr(memory, "free_memory", lambda device: 2.0**21)
    guide(X)
    num = 2**18 // (2 * ROWS) + 1  # draws of 2 parameters for each row that exceed 2 MiB
    guide.sample(num, X)
    with pytest.raises(OutOfMemoryError, match=f"2 parameters for each of {2 * num * ROWS} rows"):
        guide.sample(2 * num, X)
    with pytest.raises(OutOfMemoryError, match="rows and draws"):
        LinearisedELBO(2 * num, vectorize_particles=True, max_plate_nesting=1).loss(
            make_model(), guide, X, Y
        )


def test_diagnostics_of_one_law_refuse_a_law_for_each_row() -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), scale=0.1).setup(X, Y)
    with pytest.raises(GuideError, match="entropy_report .*one distribution.*one for each row"):
        entropy_report(guide)


def test_it_can_be_handed_to_arviz() -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), scale=0.1).setup(X, Y)
    found = to_arviz(make_model(), guide, X, Y, num_samples=5)
    assert found["posterior"]["weight"].shape == (1, 5, ROWS, 1, 1)
    assert found["log_likelihood"]["y"].shape == (1, 5, ROWS)


def test_predict_wants_a_row_of_context_for_each_row() -> None:
    def model(x, y=None):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            return pyro.sample("y", dist.Normal(z, 0.1), obs=y)

    fixed = torch.zeros(3, 1)
    guide = ConditionalHyperNetworkGuide(model, context=lambda x, y=None: fixed)
    guide.setup(X[:3], Y[:3])
    with pytest.raises(ShapeError, match="context has 3 rows for 12 rows"):
        predict(model, guide, X, num_samples=2)


# ---- saving


def same_draws(a, b) -> bool:
    drawn = []
    for guide in (a, b):
        pyro.set_rng_seed(5)
        drawn.append({**guide.sample(3, X), **{f"{n} ": v for n, v in guide(X).items()}})
    return all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"shared_noise": True}, {"factorized": True}])
def test_it_is_saved_and_drawn_from_without_the_model(options) -> None:
    guide = ConditionalHyperNetworkGuide(make_model(), **options).setup(X, Y)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    again = ConditionalHyperNetworkGuide.from_state_dict(state)
    assert again.shared_noise == guide.shared_noise
    assert same_draws(guide, again)
    assert same_draws(guide, copy.deepcopy(guide))
    assert same_draws(guide, pickle.loads(pickle.dumps(guide)))
    empty = ConditionalHyperNetworkGuide(make_model())
    empty.load_state_dict(ConditionalHyperNetworkGuide(make_model()).state_dict())


def test_a_state_of_another_context() -> None:
    guide = ConditionalHyperNetworkGuide(make_model()).setup(X, Y)
    other = ConditionalHyperNetworkGuide(
        make_model(), context=lambda x, y=None: x.expand(-1, 2)
    ).setup(X, Y)
    with pytest.raises((StateError, RuntimeError), match="context of 2 entries"):
        guide.load_state_dict(other.state_dict())


def test_a_state_whose_context_has_no_size() -> None:
    state = ConditionalHyperNetworkGuide(make_model()).setup(X, Y).state_dict()
    state["_extra_state"]["context_dim"] = -1
    with pytest.raises(StateError, match="context_dim=-1, .*expected a number of entries, and"):
        ConditionalHyperNetworkGuide.from_state_dict(state)


# ---- memory


def test_the_forward_pass_holds_one_copy_of_rows_times_weights() -> None:
    """Of the tensors that autograd keeps, counted by their storages."""
    layers = nn.Sequential(nn.Linear(1, 200), nn.ReLU(), nn.Linear(200, 1))
    model = make_model(64, layers)
    x = torch.linspace(-1, 1, 64)[:, None]
    guide = ConditionalHyperNetworkGuide(model, scale=0.0, noise_dim=4, hidden_dims=(16,))
    guide.setup(x, x[:, 0])
    copy_bytes = 64 * guide.latent_dim * 4
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = PosteriorPredictiveLoss(1).differentiable_loss(model, guide, x, x[:, 0])
    loss.backward()
    large = [size for size in held.values() if size >= copy_bytes / 8]
    assert sum(large) < 2 * copy_bytes, [size / copy_bytes for size in held.values()]


@pytest.mark.long
def test_the_density_of_each_row_is_known() -> None:
    """The density that Pyro asks for is that of the draws, and the importance weights are right."""
    pyro.set_rng_seed(0)
    y = torch.randn(6, 2)

    def model(y: Tensor) -> None:
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z, 0.5).to_event(1), obs=y)

    guide = ConditionalHyperNetworkGuide(model)
    fit(model, guide, y, num_steps=100, progress=False, seed=0)
    assert LinearisedELBO().is_bound_for(guide) and not guide.is_bijective
    options: Any = {"vectorize_particles": True, "max_plate_nesting": 1}
    evidence = float(dist.Normal(0.0, 1.25**0.5).log_prob(y).sum())
    assert abs(-IWAE(1000, **options).loss(model, guide, y) - evidence) < 0.05
    assert abs(-RenyiELBO(0, 1000, **options).loss(model, guide, y) - evidence) < 0.3
    ours, pyros = (
        objective(1000, **options).loss(model, guide, y)
        for objective in (LinearisedELBO, Trace_ELBO)
    )
    assert abs(ours - pyros) < 0.1
    with poutine.trace() as seen:
        guide(y)
    site = next(
        n for n in seen.trace.nodes.values() if isinstance(n.get("fn"), ImplicitDistribution)
    )
    free = ImplicitDistribution(site["fn"].generator, preconditioner=site["fn"].preconditioner)
    own = site["fn"].log_prob(site["value"]) + free.base_dist.log_prob(site["fn"].noise)
    torch.testing.assert_close(free.log_prob(site["value"]), own, rtol=1e-3, atol=1e-3)


def test_nothing_is_certain_with_noise_or_a_perceptron() -> None:
    data = torch.zeros(4)
    for options in ({"scale": 0.1}, {"hidden_dims": (5,)}, {"shared_noise": True}):
        guide = ConditionalHyperNetworkGuide(conjugate(), **options).setup(data)
        assert not guide.is_bijective_given_context
        assert not LinearisedELBO().is_bound_for(guide)


@pytest.mark.parametrize(("shape", "folds"), [((50,), False), ((5, 10), True), ((257,), True)])
def test_a_vector_of_latents_cannot_fold_and_a_network_may(shape, folds) -> None:
    """At 50 latents a step of the perceptron's entropy took 34 times as long."""
    event = len(shape)

    def model(y):
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).expand(shape).to_event(event))
            pyro.sample("y", dist.Normal(z.flatten(-event).sum(-1), 1.0), obs=y)

    guide = ConditionalHyperNetworkGuide(model, context=lambda y: y[:, None])
    guide(torch.randn(4))
    kind = MLPGenerator if folds else ConditionalAutoregressiveGenerator
    assert [type(m) for m in guide.modules() if isinstance(m, (MLPGenerator, kind))] == [kind]


class Reader(nn.Linear):
    """Of the inputs alone; on the top level of the module, where pickle finds it."""

    def __init__(self) -> None:
        super().__init__(1, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return super().forward(x)


def test_a_guide_with_a_network_as_context_can_be_pickled() -> None:
    def model(x, y):
        with pyro.plate("rows", ROWS):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    guide = ConditionalHyperNetworkGuide(model, context=Reader())
    fit(model, guide, X, Y, num_steps=2, progress=False)
    again = pickle.loads(pickle.dumps(guide))
    torch.testing.assert_close(again.read_context(X, Y), guide.read_context(X, Y))


@pytest.mark.parametrize(
    "again",
    [
        lambda guide: ConditionalHyperNetworkGuide.from_state_dict(guide.state_dict()),
        lambda guide: pickle.loads(pickle.dumps(guide)),
    ],
)
def test_the_order_of_keywords_does_not_matter_without_the_model_either(again: Any) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("rows", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 1.0), obs=y)

    x, y = torch.randn(2, 4)
    guide = ConditionalHyperNetworkGuide(model, init_from=None)
    guide(x, y)
    guide = again(guide)
    assert guide.read_context(y=y, x=x).equal(x[:, None])
    assert guide.read_context(x, y=y).equal(x[:, None])
    assert guide.read_context(x=x).equal(x[:, None])
