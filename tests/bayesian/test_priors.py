"""Priors of a BayesianModule: which parameter gets which, and with what shape, dtype and device."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.distributions import constraints
from torch import Tensor, nn

from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.bayesian.prior_shapes import fit_to_parameter, map_tensors, moved
from pyro_implicit.bayesian.priors import ParameterPriors
from pyro_implicit.exceptions import ArgumentError, ShapeError

NORMAL = dist.Normal(0.0, 1.0)
PARAMETERS = {
    "0.weight": torch.zeros(4, 3),
    "0.bias": torch.zeros(4),
    "2.weight": torch.zeros(1, 4),
    "scale": torch.zeros(()),
}


def fitted(prior: Any, parameters: dict[str, Tensor] = PARAMETERS) -> dict[str, Any]:
    return dict(ParameterPriors(prior, parameters).fitted(parameters))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_one_distribution_for_all() -> None:
    for name, prior in fitted(dist.Laplace(1.0, 2.0)).items():
        assert prior.batch_shape == ()
        assert prior.event_shape == PARAMETERS[name].shape
        value = torch.randn(prior.event_shape)
        expected = torch.distributions.Laplace(1.0, 2.0).log_prob(value).sum()
        torch.testing.assert_close(prior.log_prob(value), expected)


def test_names_win_over_patterns_and_the_first_pattern_wins() -> None:
    scales = {
        name: prior.base_dist.scale.unique().item() if prior.event_dim else prior.scale.item()
        for name, prior in fitted(
            {
                r".*weight": dist.Normal(0.0, 2.0),
                r"0\..*": dist.Normal(0.0, 3.0),
                "0.weight": dist.Normal(0.0, 4.0),
                r"scale|.*": None,
            }
        ).items()
    }
    assert scales == {"0.weight": 4.0, "0.bias": 3.0, "2.weight": 2.0}


def test_unmatched_and_none_stay_deterministic() -> None:
    assert list(fitted({"0.*": NORMAL})) == ["0.weight", "0.bias"]
    assert list(fitted({".*": NORMAL, "scale": None})) == ["0.weight", "0.bias", "2.weight"]
    by_function = fitted({"0.*": lambda name, w: NORMAL if w.dim() == 2 else None})
    assert list(by_function) == ["0.weight"]


def test_function_of_name_and_tensor() -> None:
    def prior(name: str, tensor: Tensor) -> Any:
        if name.endswith("bias"):
            return None
        return dist.Normal(0.0, 1 / math.sqrt(max(tensor.numel(), 1)))

    found = fitted(prior)
    assert list(found) == ["0.weight", "2.weight", "scale"]
    torch.testing.assert_close(found["0.weight"].stddev, torch.full((4, 3), 12**-0.5))


def test_function_is_asked_once_at_first_and_unseen() -> None:
    calls: list[str] = []

    def prior(name: str, tensor: Tensor) -> Any:
        calls.append(name)
        return dist.Normal(0.0, pyro.sample(f"{name}_scale", dist.HalfNormal(1.0)))

    user = mlp()
    state = torch.get_rng_state()
    with poutine.trace() as tracer:
        net = BayesianModule(user, prior)
    assert not tracer.trace.nodes
    assert torch.equal(torch.get_rng_state(), state)
    assert calls == list(net.site_names)
    trace = poutine.trace(net).get_trace(torch.randn(2, 3))
    assert len(calls) == 8
    assert {f"{name}_scale" for name in net.site_names} < set(trace.nodes)


def test_function_that_works_in_the_model_only() -> None:
    scales: dict[str, Tensor] = {}
    net = BayesianModule(mlp(), lambda name, w: dist.Normal(0.0, scales["tau"]))
    scales["tau"] = torch.tensor(1e-6)
    values = poutine.trace(net).get_trace(torch.randn(2, 3))
    assert all(values.nodes[name]["value"].abs().max() < 1e-4 for name in net.site_names)


@pytest.mark.parametrize("returned", [None, 1.0, torch.distributions.Normal(0.0, 1.0)])
def test_function_that_returns_no_distribution_in_the_model(returned: Any) -> None:
    def prior(name: str, tensor: Tensor) -> Any:
        return ready[name]

    ready: dict[str, Any] = {}
    net = BayesianModule(nn.Linear(3, 1), prior)
    ready.update(weight=returned, bias=returned)
    with pytest.raises(ArgumentError, match=r"returned .* for parameter 'weight'; expected a dist"):
        net(torch.randn(2, 3))


def hierarchical(name: str, tensor: Tensor) -> Any:
    scale = pyro.sample("tau", dist.HalfNormal(1.0))
    return dist.Normal(0.0, scale[(..., *[None] * tensor.dim())])


@pytest.mark.parametrize("particles", [0, 1, 3])
def test_hierarchical_prior_under_vectorised_particles(particles: int) -> None:
    net = BayesianModule(mlp(), hierarchical)
    shapes = {name: p.shape for name, p in mlp().named_parameters()}

    def model(x: Tensor) -> Tensor:
        if not particles:
            return net(x)
        with pyro.plate("particles", particles, dim=-2):
            return net(x)

    batch = (particles, 1) if particles else ()
    trace = poutine.trace(model).get_trace(torch.randn(5, 3))
    trace.compute_log_prob()
    assert sum(name == "tau" for name in trace.nodes) == 1  # one for all tensors
    tau = trace.nodes["tau"]["value"]
    for name, shape in shapes.items():
        site = trace.nodes[name]
        assert site["value"].shape == batch + shape
        scale = tau.reshape(*batch, *[1] * len(shape))
        log_prob = torch.distributions.Normal(0.0, scale).log_prob(site["value"])
        expected = log_prob.flatten(len(batch)).sum(-1)
        torch.testing.assert_close(site["log_prob"], expected)
    lead = (particles,) if particles > 1 else ()
    assert trace.nodes["_RETURN"]["value"].shape == (*lead, 5, 1)


@pytest.mark.parametrize("particles", [3, 4])  # a weight of shape (4, 3): 4 would broadcast
def test_scale_without_indices_is_refused(particles: int) -> None:
    def prior(name: str, tensor: Tensor) -> Any:
        return dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(1.0)))

    net = BayesianModule(mlp(), prior)
    match = r"'0.weight' has batch_shape \(\d, 1\).*`scale\[..., None, None\]`"
    with pytest.raises(ShapeError, match=match), pyro.plate("particles", particles, dim=-2):
        net(torch.randn(5, 3))


def test_prior_as_wide_as_a_plate_is_accepted_when_it_says_so() -> None:
    def full(name: str, tensor: Tensor) -> Any:
        return dist.Normal(torch.zeros_like(tensor), 1.0)

    def explicit(name: str, tensor: Tensor) -> Any:
        return dist.Normal(0.0, torch.ones(4, 1)).expand(tensor.shape).to_event(tensor.dim())

    for prior in (full, explicit):
        net = BayesianModule(nn.Linear(3, 4, bias=False), prior)
        with pyro.plate("particles", 4, dim=-2):
            assert net(torch.randn(5, 3)).shape == (4, 5, 4)


shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@pytest.mark.long
@given(shape=shapes, data=st.data())
def test_batch_shapes_that_broadcast_become_event_dims(shape: Any, data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    batch = tuple(size if kept else 1 for size, kept in zip(shape, keep, strict=True))
    batch = batch[data.draw(st.integers(0, len(shape))) :]
    scale = torch.rand(batch) + 0.5
    prior = fit_to_parameter("w", dist.Normal(0.0, scale), torch.zeros(shape), constant=True)
    value = torch.randn(shape)
    assert (prior.batch_shape, prior.event_shape) == ((), shape)
    expected = torch.distributions.Normal(0.0, scale.expand(shape)).log_prob(value).sum()
    torch.testing.assert_close(prior.log_prob(value), expected)


def test_distribution_of_the_parameters_own_shape_is_taken_as_it_is() -> None:
    prior = dist.MultivariateNormal(torch.zeros(4), torch.eye(4))
    assert fit_to_parameter("w", prior, torch.zeros(4)) is prior
    scalar = dist.Normal(torch.zeros(5, 1), 1.0)
    assert fit_to_parameter("w", scalar, torch.zeros(())) is scalar


@pytest.mark.parametrize(
    "prior, match",
    [
        (NORMAL.expand([4]), r"'0.weight' has batch_shape \(4,\) and event_shape \(\)"),
        (NORMAL.expand([4, 3]).to_event(1), r"event_shape \(3,\).*forget `.to_event\(2\)`"),
        (NORMAL.expand([3, 4]).to_event(2), r"event_shape \(3, 4\), but .* shape \(4, 3\)"),
        (NORMAL.expand([2, 4, 3]), r"batch_shape \(2, 4, 3\)"),
        (NORMAL.expand([2, 4, 3]).to_event(2), r"batch_shape \(2,\).* and no batch dims"),
    ],
)
def test_shapes_that_do_not_fit(prior: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        BayesianModule(mlp(), {"0.weight": prior})


@pytest.mark.parametrize(
    "prior, match",
    [
        (None, "prior is None"),
        (1.0, "prior is 1.0"),
        (dist.Normal, "prior is .*Normal.*expected an instance"),
        (torch.distributions.Normal(0.0, 1.0), r"\(torch.distributions\)"),
        ({"0.weight": 2.0}, r"prior\['0.weight'\] is 2.0"),
        ({"1.weight": NORMAL}, r"matches no trainable parameter. Trainable .*'0.weight', '0.bias'"),
        ({"0": NORMAL}, r"prior\['0'\] matches no trainable parameter"),
        ({"2.weight": NORMAL}, r"prior\['2.weight'\] .*frozen ones .*'2.weight'"),
        ({"(": NORMAL}, r"prior\['\('\]: a key is .*neither \("),
        ({3: NORMAL}, r"prior\[3\]: a key is .*neither \("),
        ({}, "selects no parameter: .*'0.weight'"),
        ({".*": None}, r"selects no parameter: .* pyro.module\('net', module\)"),
        (lambda name, tensor: None, "selects no parameter"),
        (dist.Normal(0.0, torch.ones(4, 3, requires_grad=True)), "requires gradients.*pyro.param"),
    ],
)
def test_priors_that_cannot_be_used(prior: Any, match: str) -> None:
    user = mlp()
    user[2].weight.requires_grad_(False)
    with pytest.raises(ArgumentError, match=match):
        BayesianModule(user, prior)


def test_module_without_trainable_parameters() -> None:
    with pytest.raises(ArgumentError, match="Trainable parameters: none; frozen ones: none"):
        BayesianModule(nn.ReLU(), NORMAL)


def nested_priors() -> list[Any]:
    scale = torch.tensor([1.0, 2.0, 3.0])
    affine = dist.transforms.AffineTransform(torch.zeros(3), scale)
    return [
        dist.Normal(torch.zeros(3), scale),
        dist.Normal(torch.zeros(3), scale).to_event(1).mask(torch.tensor(True)),
        dist.TransformedDistribution(dist.Normal(torch.zeros(3), scale), [affine, affine.inv]),
        dist.Uniform(-scale, scale),
        dist.MultivariateNormal(torch.zeros(3), torch.diag(scale)),
        dist.MixtureSameFamily(
            dist.Categorical(torch.ones(3, 2)), dist.Normal(torch.zeros(3, 2), torch.ones(2))
        ),
        dist.ImproperUniform(constraints.interval(-scale, scale), (), (3,)),
        dist.TransformedDistribution(
            dist.Normal(torch.zeros(3), scale), [dist.transforms.Permute(torch.tensor([2, 0, 1]))]
        ),
    ]


@pytest.mark.parametrize("index", range(8))
def test_distributions_follow_dtype_and_leave_the_original(index: int) -> None:
    prior = nested_priors()[index]
    value = torch.rand(3) / 2
    expected = prior.log_prob(value)
    double = moved(prior, torch.zeros((), dtype=torch.float64))
    found: list[torch.dtype] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor.dtype)
        return tensor

    assert map_tensors(double, note) is double
    assert torch.float64 in found and torch.float32 not in found
    torch.testing.assert_close(double.log_prob(value.double()).double(), expected.double())
    assert moved(double, torch.zeros((), dtype=torch.float64)) is double
    torch.testing.assert_close(prior.log_prob(value), expected)


def test_flows_follow_their_parameter() -> None:
    flow = dist.transforms.affine_coupling(3, [4])
    flow.requires_grad_(False)
    prior = dist.TransformedDistribution(dist.Normal(torch.zeros(3), 1.0), [flow])
    net = BayesianModule(nn.Linear(3, 3), {"bias": prior}).to(torch.float64)
    assert net(torch.randn(2, 3).double()).dtype == torch.float64
    assert next(flow.parameters()).dtype == torch.float32


@pytest.mark.parametrize("prior", [NORMAL, lambda name, tensor: dist.Normal(0.0, 1.0)])
def test_priors_follow_to(prior: Any) -> None:
    net = BayesianModule(mlp(), prior)
    x = torch.randn(5, 3)
    for dtype in (torch.float64, torch.float32):
        net.to(dtype)
        trace = poutine.trace(net).get_trace(x.to(dtype))
        assert all(trace.nodes[name]["value"].dtype == dtype for name in net.site_names)
        assert trace.nodes["_RETURN"]["value"].dtype == dtype


def test_expanded_priors_are_kept() -> None:
    net = BayesianModule(mlp(), NORMAL)
    first, again = (poutine.trace(net).get_trace(torch.randn(2, 3)) for _ in range(2))
    assert all(first.nodes[n]["fn"] is again.nodes[n]["fn"] for n in net.site_names)


@pytest.mark.parametrize(
    "prior", [lambda name: dist.Normal(0.0, 1.0), {".*": lambda: dist.Normal(0.0, 1.0)}]
)
def test_functions_of_other_arguments_are_refused_at_once(prior):
    with pytest.raises(ArgumentError, match="is a function with the arguments .*lambda name, tens"):
        BayesianModule(nn.Linear(2, 1), prior=prior)


def test_functions_with_more_arguments_that_have_defaults_are_taken():
    def prior(name, tensor, scale=2.0, *, shift=0.0, **more):
        return dist.Normal(shift, scale)

    assert len(BayesianModule(nn.Linear(2, 1), prior=prior).site_names) == 2


@pytest.mark.parametrize("prior", [dist.Poisson(1.0), lambda name, value: dist.Bernoulli(0.5)])
def test_a_discrete_prior_is_refused(prior: Any) -> None:
    with pytest.raises(ArgumentError, match="draws whole numbers; expected a continuous"):
        fitted(prior)
