"""Data that no step could use are refused before anything is fitted, in words of the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError
from pyro_implicit.training.fitting.checks.first_look import first_look

X, Y = torch.ones(6, 2), torch.arange(6.0)


def model(x: Tensor, y: Any = None, squeezed: bool = True) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    f = (x * weight).sum(-1, keepdim=not squeezed)
    with pyro.plate("rows", 6, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=y)


def quick(*args: Any, **options: Any) -> Any:
    """A fit whose guide takes no start: any error comes from the look."""
    chosen: dict[str, Any] = {"seed": 0, "progress": False, "num_steps": 3} | options
    return fit(
        chosen.pop("model", model), HyperNetworkGuide(chosen.pop("of", model)), *args, **chosen
    )


@pytest.mark.parametrize(
    "args",
    [
        (X, Y[:, None]),
        (X, Y, False),
        (X, Y[:, None], False),
        (X, Y[:4]),
    ],
)
@pytest.mark.parametrize("validates", [True, False])
def test_shapes_that_do_not_fit(args: Any, validates: bool) -> None:
    with pyro.validation_enabled(validates), pytest.raises(ShapeError, match=r"f.squeeze\(-1\)"):
        quick(*args)


def test_rows_without_a_plate() -> None:
    def loose(y: Tensor, event: bool) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, 1.0).expand(y.shape).to_event(int(event)), obs=y)

    with pytest.raises(ShapeError, match=r"'y' has the batch shape \(6,\), with dimensions that"):
        quick(Y, False, model=loose, of=loose)
    first_look(loose, (Y, True), {})
    first_look(loose, (Y, False), {}, in_plates=False)  # an objective that knows the plates
    with pyro.validation_enabled(False):
        first_look(loose, (Y, False), {})


def test_one_observation_for_several_plates_is_fine() -> None:
    def models() -> None:
        with pyro.plate("models", 3, dim=-2):
            mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
            with pyro.plate("rows", 6, dim=-1):
                pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)

    first_look(models, (), {})


def test_no_rows() -> None:
    with pytest.raises(ShapeError, match=r"of shape \(0, 2\), has no rows"):
        quick(X[:0], Y[:0])


def test_batches_whose_observations_were_forgotten() -> None:
    with pytest.raises(SiteError, match=r"observes nothing.*batches=DataLoader\(TensorDataset"):
        quick(batches=DataLoader(X, batch_size=3))  # type: ignore[arg-type]
    first_look(model, (X,), {}, in_batches=True)  # all rows: as for whole data, a warning later

    def by_factor(x: Tensor) -> None:
        with pyro.plate("rows", 6, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.factor("f", -z.square())

    first_look(by_factor, (X[:3],), {}, in_batches=True)


@pytest.mark.long
@pytest.mark.parametrize("validates", [True, False])
def test_observations_that_are_nan(validates: bool) -> None:
    bad = torch.where(Y == 3.0, torch.nan, Y)

    def masked(x: Tensor, y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)), poutine.mask(mask=~y.isnan()):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y.nan_to_num())

    with pyro.validation_enabled(validates):
        with pytest.raises(NonFiniteError, match=r"'y' observes 1 NaN.*index \(3,\)"):
            quick(X, bad)
        assert quick(X, bad, model=masked, of=masked).num_steps == 3
        # in a later batch: the step tells
        batches = [(X[:3], Y[:3]), (X[3:], bad[3:])]
        with pytest.raises(NonFiniteError, match=r"'y' observes 1 NaN.*index \(0,\)"):
            quick(batches=batches[::-1])
        objective = LinearisedELBO(2, vectorize_particles=True)
        endless = [batches[0], *[batches[1]] * 25]
        with pytest.raises(NonFiniteError, match=r"'y' observes 1 NaN.*index \(0,\)"):
            quick(batches=endless, num_steps=40, objective=objective)


@pytest.mark.long
def test_a_loss_that_is_not_finite_names_its_site_without_validation() -> None:
    calls = 0

    def broken() -> None:
        nonlocal calls
        calls += 1
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.factor("cause", mean * (torch.nan if calls > 8 else 1.0))

    with pyro.validation_enabled(False):
        guide = HyperNetworkGuide(broken, init_from=None).setup()
        with pytest.raises(NonFiniteError, match="20 steps in a row.*Look at site 'cause'"):
            fit(broken, guide, objective=LinearisedELBO(2), num_steps=99, seed=0, progress=False)


def test_nothing_is_changed_by_the_look() -> None:
    norm = nn.BatchNorm1d(2)
    runs = 0

    def restless(x: Tensor, y: Tensor) -> None:
        nonlocal runs
        runs += 1
        pyro.param("fresh", lambda: torch.randn(3))
        model(norm(x), y)
        torch.rand(3)

    pyro.param("old", torch.ones(1))
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in norm.state_dict().items()}
    first_look(restless, (X, Y), {})
    assert runs == 3  # two more tell whether what is normalised is drawn
    assert torch.equal(torch.get_rng_state(), state)
    assert set(pyro.get_param_store().keys()) == {"old"}
    assert all(torch.equal(before[k], v) for k, v in norm.state_dict().items())


@pytest.fixture(autouse=True)
def _an_empty_store() -> Iterator[None]:
    yield
    pyro.clear_param_store()


def test_a_model_that_cannot_be_drawn_is_not_looked_at() -> None:
    def improper(y: Tensor) -> None:
        support = dist.constraints.real
        pyro.sample("mean", dist.ImproperUniform(support, (), ()))
        raise AssertionError("never here")

    first_look(improper, (Y,), {})


@pytest.mark.parametrize("shape", [(1,), (6, 1)])
def test_one_row_is_not_copied_for_all(shape: tuple[int, ...]) -> None:
    def copied() -> None:
        with pyro.plate("columns", 6, dim=-2), pyro.plate("rows", 5, dim=-1):
            pyro.sample("y", dist.Normal(torch.zeros(6, 5), 1.0), obs=torch.zeros(shape))

    with pytest.raises(ShapeError, match="expected one observation for each row"):
        first_look(copied, (), {})


def test_one_number_for_all_rows_is_told() -> None:
    with pytest.warns(UserWarning, match="'y' observes one number for all of its 6 rows"):
        quick(X, Y[0])


def test_a_masked_latent_is_told() -> None:
    mask = torch.tensor([True, False, False, True, True, True])

    def masked(y: Tensor) -> None:
        with pyro.plate("rows", 6):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y, obs_mask=mask)  # are replicates
            with pyro.poutine.mask(mask=mask.new_ones(6)):
                pyro.sample("z", dist.Normal(0.0, 1.0))
            with pyro.poutine.mask(mask=mask):
                pyro.sample("b", dist.Normal(0.0, 1.0))

    with pytest.warns(UserWarning, match="'b' is masked in 2 places, where its entropy") as told:
        first_look(masked, (Y,), {})
    assert len(told) == 1


def test_a_latent_whose_distribution_is_masked_is_told() -> None:
    mask = torch.tensor([True, False, True])

    def masked() -> None:
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).mask(mask))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    with pytest.warns(UserWarning, match="'z' is masked in 1 places"):
        first_look(masked, (), {})


def test_masks_of_what_is_summed_out_are_not_told() -> None:
    """Sequences of several lengths are masked in hidden Markov models."""
    mask = torch.tensor([True, False, True])

    def ragged() -> None:
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
        with pyro.plate("rows", 3), pyro.poutine.mask(mask=mask):
            x = pyro.sample("x", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(3))

    first_look(ragged, (), {})  # warnings are errors


def test_infinite_observations() -> None:
    bad = Y.clone()
    bad[2] = torch.inf
    with pytest.raises(NonFiniteError, match="site 'y' observes infinite values"):
        quick(X, bad)


def test_a_network_of_two_names_is_taken_back_once() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    before = net.weight.detach().clone()

    def model(x: torch.Tensor) -> None:
        pyro.module("one", net)
        pyro.module("other", net)
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(mean + net(torch.ones(1)), 0.5), obs=x)

    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, torch.ones(4), num_steps=3, progress=False)
    assert not torch.equal(net.weight, before)


@pytest.mark.parametrize("features", [1, 2])
def test_a_network_inside_of_the_data_plate_is_told_as_such(features: int) -> None:
    net = BayesianModule(nn.Linear(2, features), prior=dist.Normal(0.0, 1.0))

    def inside(x: Tensor, y: Any = None) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x)[..., 0], 0.1), obs=y)

    match = r"inside of plate 'data' a module draws 6 times .* outside of the data plate .*local"
    with pytest.raises(ShapeError, match=match):
        quick(X, Y, model=inside, of=inside)


class _Dropping(nn.Module):
    """One line, with a dropout of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.line, self.kind = nn.Linear(2, 1), kind
        self.drop = nn.AlphaDropout(0.3) if kind == "alpha" else nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        f = self.line(x)[..., 0]
        if self.kind in ("layer", "alpha"):
            return self.drop(f)
        if self.kind == "rrelu":
            return nn.functional.rrelu(f, training=self.training)
        on = {"own mode": self.training, "no rate": self.training, "always": True}
        rate = 0.0 if self.kind == "no rate" else 0.3
        return nn.functional.dropout(f, rate, training=on.get(self.kind, False))


def _dropping(kind: str = "layer") -> tuple[Any, nn.Module]:
    network = BayesianModule(_Dropping(kind), dist.Normal(0.0, 1.0))

    def dropping(x: Tensor, y: Any = None) -> None:
        f = network(x)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    return dropping, network


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("layer", r"module.drop of BayesianModule\): the steps draw"),
        ("alpha", r"module.drop of BayesianModule\): the steps draw"),
        ("own mode", r"F.dropout\): the steps draw"),
        ("rrelu", r"F.rrelu\): the steps draw"),
    ],
)
def test_noise_of_a_dropout_that_predictions_do_not_have(kind: str, match: str) -> None:
    dropping, network = _dropping(kind)
    with pytest.warns(UserWarning, match=match):
        first_look(dropping, (X, Y), {})
    assert network.training
    for part in network.modules():
        if isinstance(part, (_Dropping, nn.modules.dropout._DropoutNd)):
            part.training = False
    first_look(dropping, (X, Y), {})


@pytest.mark.parametrize("kind", ["always", "no rate", "off"])
def test_noise_that_stays_or_never_comes_and_layers_that_are_not_called_are_not_told(
    kind: str,
) -> None:
    """The network has a layer of dropout, which it does not call."""
    first_look(_dropping(kind)[0], (X, Y), {})


def test_noise_of_a_dropout_is_told_by_fit() -> None:
    dropping, _ = _dropping()
    with pytest.warns(UserWarning, match="intervals come out too wide") as told:
        result = quick(X, Y, model=dropping, of=dropping)
    both = [text for text in result.warnings if "random layers" in text]
    assert len(both) == len([one for one in told if "random layers" in str(one.message)]) == 1


def _normalising(norm: nn.Module, is_drawn: bool) -> tuple[Any, nn.Module]:
    prior = {"0.*" if is_drawn else "2.*": dist.Normal(0.0, 1.0)}
    layers = nn.Sequential(nn.Linear(X.shape[1], 3), norm, nn.Linear(3, 1))
    network = BayesianModule(layers, prior)

    def normalising(x: Tensor, y: Any = None) -> None:
        f = network(x)[..., 0]
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    return normalising, network


def test_running_statistics_of_what_is_drawn_are_told() -> None:
    normalising, network = _normalising(nn.BatchNorm1d(3), True)
    before = {name: value.clone() for name, value in network.named_buffers()}
    with pytest.warns(UserWarning, match=r"\(BatchNorm1d, in training mode\) come after latents"):
        first_look(normalising, (X, Y), {})
    assert all(torch.equal(before[n], value) for n, value in network.named_buffers())
    network.eval()
    first_look(normalising, (X, Y), {})


@pytest.mark.parametrize(
    ("norm", "is_drawn"),
    [
        (nn.BatchNorm1d(3), False),
        (nn.LayerNorm(3), True),
        (nn.BatchNorm1d(3, track_running_stats=False), True),
    ],
)
def test_normalisations_that_predictions_share_are_not_told(norm: Any, is_drawn: bool) -> None:
    first_look(_normalising(norm, is_drawn)[0], (X, Y), {})


def _kept_apart(kind: str) -> Any:
    """A network without a prior, whose input differs from run to run, but not by a latent."""
    network = nn.Sequential(nn.Linear(X.shape[1], 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def apart(x: Tensor, y: Tensor) -> None:
        pyro.module("network", network)
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        gammas = pyro.sample("gammas", dist.Gamma(scale.expand(40), 1.0).to_event(1))
        with pyro.plate("features", X.shape[1]):
            weights = pyro.sample("weights", dist.Normal(0.0, 1.0))
        shown = 4 if kind in ("subsample", "sampler") else len(x)
        with pyro.plate("rows", len(x), subsample_size=shown) as rows:
            some = x[rows]
            if kind == "latents of rows":
                some = pyro.sample("z", dist.Normal(some, 1.0).to_event(1))
            if kind == "noise":
                some = some + 0.1 * torch.randn_like(some)
            if kind == "sampler":  # which takes as many random numbers as it needs
                some = some + 0.1 * torch.randn_like(some) + 0.0 * gammas.mean()
            if kind == "dropout":
                some = nn.functional.dropout(some, 0.5, training=True)
            f = network(some)[:, 0]
            if kind == "second call":
                f = f + network(some * scale)[:, 0]
            if kind == "plate":
                f = f + network(some * weights)[:, 0]
            pyro.sample("y", dist.Normal(f, scale), obs=y[rows])

    return apart


@pytest.mark.parametrize("kind", ["subsample", "sampler", "latents of rows", "noise", "dropout"])
def test_other_rows_and_noise_before_a_normalisation_are_not_told(kind: str) -> None:
    first_look(_kept_apart(kind), (X, Y), {})


@pytest.mark.parametrize("kind", ["second call", "plate"])
def test_each_call_and_latents_in_other_plates_than_the_rows_are_looked_at(kind: str) -> None:
    with pytest.warns(UserWarning, match="come after latents that are drawn"):
        first_look(_kept_apart(kind), (X, Y), {})


@pytest.mark.parametrize("value", [3, 1.5, True])
def test_observations_that_are_no_tensors(value: Any) -> None:
    def of_number() -> None:
        p = pyro.sample("p", dist.Normal(0.0, 1.0))
        pyro.sample("k", dist.Normal(p, 1.0), obs=value)

    told = rf"'k' is observed at {value}, a {type(value).__name__}; .*tensor\({float(value)}\), or"
    with pytest.raises(ArgumentError, match=told):
        fit(of_number, HyperNetworkGuide(of_number), num_steps=2, progress=False)


def test_what_obs_mask_hides_of_a_discrete_site_is_refused_without_another_word() -> None:
    def answers() -> None:
        t = pyro.sample("t", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 4):
            fn = dist.Bernoulli(logits=t)
            pyro.sample(
                "r", fn, obs=torch.ones(4), obs_mask=torch.tensor([True, True, False, True])
            )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SiteError, match=r"'r_unobserved' is what obs_mask hides of a discrete"):
            fit(answers, HyperNetworkGuide(answers), num_steps=2, progress=False)


def test_a_distribution_of_ones_own_may_take_numbers() -> None:
    class Own(dist.Normal):
        def log_prob(self, value: Any) -> Any:
            return super().log_prob(torch.as_tensor(value, dtype=self.loc.dtype))

    def model() -> None:
        p = pyro.sample("p", dist.Normal(0.0, 1.0))
        pyro.sample("k", Own(p, 1.0), obs=3)

    first_look(model, (), {})
    fit(model, AutoNormal(model), num_steps=2, progress=False)


def test_tensors_without_data_are_refused_by_fit() -> None:
    with pytest.raises(ArgumentError, match="argument 1 is on the device 'meta'"):
        quick(X, Y.to("meta"))
