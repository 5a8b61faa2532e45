"""BayesianModule as part of a Pyro model: what it draws, what it leaves alone, what it trains."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, AutoStructured
from pyro.nn import PyroModule
from torch import nn

from pyro_implicit import evaluate
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ArgumentError, ShapeError

NORMAL = dist.Normal(0.0, 1.0)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def regression(net: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.3), obs=y)

    return model


def fit(model: Callable[..., Any], guide: Callable[..., Any], *data: Any, steps: int = 5) -> SVI:
    elbo = Trace_ELBO(num_particles=3, vectorize_particles=True)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), elbo)
    for _ in range(steps):
        svi.step(*data)
    return svi


def snapshot(module: nn.Module) -> dict[str, Any]:
    return {
        "classes": [type(child) for child in module.modules()],
        "training": [child.training for child in module.modules()],
        "parameters": [id(p) for p in module.parameters()],
        "requires_grad": [p.requires_grad for p in module.parameters()],
        "buffers": [name for name, _ in module.named_buffers()],
        "state": copy.deepcopy(module.state_dict()),
    }


def assert_unchanged(module: nn.Module, before: dict[str, Any]) -> None:
    after = snapshot(module)
    torch.testing.assert_close(after.pop("state"), before["state"], rtol=0, atol=0)
    assert after == {key: value for key, value in before.items() if key != "state"}
    assert all(p.grad is None for p in module.parameters())


@pytest.fixture(params=[False, True], ids=["global_params", "module_local_params"])
def module_local_params(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


@pytest.mark.parametrize("training", [True, False])
def test_users_module_is_left_alone(training: bool) -> None:
    user = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).train(training)
    user[2].bias.requires_grad_(False)
    before = snapshot(user)
    net = BayesianModule(user, {"0.*": NORMAL})
    assert_unchanged(user, before)
    x, y = torch.randn(8, 3), torch.randn(8)
    model = regression(net)
    poutine.trace(model).get_trace(x, y)
    assert_unchanged(user, before)
    net.eval()
    guide = AutoNormal(model)
    fit(model, guide, x, y)
    Predictive(model, guide=guide, num_samples=4, parallel=True)(x)
    net.train().to(torch.float64)
    assert_unchanged(user, before)


def test_sites_are_named_parameters_with_closed_form_density() -> None:
    user = mlp()
    scales = {"0.weight": 0.5, "0.bias": 2.0, "2.weight": 1.5, "2.bias": 1.0}
    net = BayesianModule(
        user, {name: dist.Normal(0.1, scale) for name, scale in scales.items()}, name="net"
    )
    trace = poutine.trace(net).get_trace(torch.randn(5, 3))
    trace.compute_log_prob()
    assert list(net.site_names) == [f"net.{name}" for name, _ in user.named_parameters()]
    for name, parameter in user.named_parameters():
        site = trace.nodes[f"net.{name}"]
        assert site["value"].shape == parameter.shape
        expected = torch.distributions.Normal(0.1, scales[name]).log_prob(site["value"])
        torch.testing.assert_close(site["log_prob_sum"], expected.sum())


def test_output_is_that_of_the_module_with_the_drawn_parameters() -> None:
    user = mlp()
    net = BayesianModule(user, NORMAL)
    x = torch.randn(5, 3)
    trace = poutine.trace(net).get_trace(x)
    draws = {name: trace.nodes[name]["value"] for name in net.site_names}
    user.load_state_dict(draws)
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], user(x))


def test_deterministic_part_is_trained_and_the_users_module_is_not(
    module_local_params: bool,
) -> None:
    user = mlp()
    before = snapshot(user)
    net = BayesianModule(user, {"2.*": NORMAL})
    x = torch.randn(20, 3)
    y = x.sum(-1)
    guide = AutoNormal(regression(net))
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    assert list(start) == ["module.0.weight", "module.0.bias"]
    fit(regression(net), guide, x, y)
    for name, parameter in net.named_parameters():
        assert not torch.allclose(parameter, start[name]), name
    assert_unchanged(user, before)


def test_partially_stochastic_inside_a_pyro_module(module_local_params: bool) -> None:
    class Model(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = BayesianModule(mlp(), {"2.*": NORMAL})

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            return regression(self.net)(x, y)

    model = Model()
    guide = AutoNormal(model)
    data = torch.randn(20, 3), torch.randn(20)
    weight = model.net.module[0].weight
    start = weight.detach().clone()
    if not module_local_params:  # Pyro's SVI knows no plain nn.Module in a PyroModule with them
        fit(model, guide, *data)
        assert not torch.allclose(weight, start)
        start = weight.detach().clone()
    loss = Trace_ELBO()(model, guide)  # a plain torch loop
    loss(*data)
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(*data).backward()
    optimiser.step()
    assert model.net.module[0].weight is weight
    assert not torch.allclose(weight, start)


def test_a_second_network_of_the_same_name_is_trained(module_local_params: bool) -> None:
    for _ in range(2):
        net = BayesianModule(mlp(), {"2.*": NORMAL})
        start = net.module[0].weight.detach().clone()
        fit(regression(net), AutoNormal(regression(net)), torch.randn(9, 3), torch.randn(9))
        assert not torch.allclose(net.module[0].weight, start)


def test_two_networks_in_one_model_by_name() -> None:
    first, second = BayesianModule(mlp(), NORMAL, name="a"), BayesianModule(mlp(), NORMAL, name="b")
    trace = poutine.trace(lambda x: first(x) + second(x)).get_trace(torch.randn(5, 3))
    assert len(trace.stochastic_nodes) == 8


def test_deterministic_parts_of_two_networks_without_names_are_both_trained() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))

    first = BayesianModule(network(), {"0.*": NORMAL})
    second = BayesianModule(network(), {"1.*": NORMAL})  # both have a deterministic "2.weight"

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return regression(lambda x: first(x) + second(x))(x, y)

    before = [p.detach().clone() for net in (first, second) for p in net.parameters()]
    fit(model, AutoNormal(model), torch.randn(9, 3), torch.randn(9))
    after = [p for net in (first, second) for p in net.parameters()]
    assert len(before) == 8
    assert not any(torch.allclose(old, new) for old, new in zip(before, after, strict=True))


def test_predictive_in_parallel_equals_one_by_one_on_the_same_draws() -> None:
    net = BayesianModule(mlp(), NORMAL)
    x = torch.randn(6, 3)

    def model(x: torch.Tensor) -> None:
        mean = pyro.deterministic("mean", net(x).squeeze(-1), event_dim=0)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.3))

    shapes = {name: p.shape for name, p in mlp().named_parameters()}
    draws = {name: torch.randn(7, *shape) for name, shape in shapes.items()}
    means = [
        Predictive(model, draws, return_sites=["mean"], parallel=parallel)(x)["mean"]
        for parallel in (True, False)
    ]
    assert means[0].shape == means[1].shape == (7, 6)
    torch.testing.assert_close(*means)


def test_replay_and_condition() -> None:
    net = BayesianModule(mlp(), NORMAL)
    x = torch.randn(5, 3)
    trace = poutine.trace(net).get_trace(x)
    output = trace.nodes["_RETURN"]["value"]
    torch.testing.assert_close(poutine.replay(net, trace)(x), output)
    draws = {name: trace.nodes[name]["value"] for name in net.site_names}
    torch.testing.assert_close(poutine.condition(net, draws)(x), output)


def test_init_to_module_starts_a_guide_at_the_networks_values() -> None:
    user = mlp()
    net = BayesianModule(user, NORMAL, name="net")

    def model(x: torch.Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(net(x), scale).to_event(2), obs=torch.zeros(5, 1))

    guide = AutoNormal(model, init_loc_fn=net.init_to_module)
    guide(torch.randn(5, 3))
    median = guide.median()
    assert "scale" in median
    for name, parameter in user.named_parameters():
        torch.testing.assert_close(median[f"net.{name}"], parameter.data)


def test_init_to_module_leaves_values_outside_of_the_prior_to_pyro() -> None:
    net = BayesianModule(nn.Linear(3, 1), {"weight": dist.HalfNormal(1.0), "bias": NORMAL})
    net.module.weight.copy_(torch.tensor([[1.0, -2.0, 3.0]]))
    trace = poutine.trace(net).get_trace(torch.randn(5, 3))
    assert (net.init_to_module(trace.nodes["weight"]) > 0).all()
    assert torch.equal(net.init_to_module(trace.nodes["bias"]), net.module.bias)


def test_state_dict_loads() -> None:
    saved = BayesianModule(mlp(), {"0.*": NORMAL})
    other = BayesianModule(mlp(), {"0.*": NORMAL})
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other.state_dict(), saved.state_dict(), rtol=0, atol=0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(x)[0][:, -1])


@pytest.mark.parametrize("user, shape", [(mlp(), (6, 3)), (Recurrent(), (6, 5, 3))])
def test_copies_and_pickles_draw_the_same(user: nn.Module, shape: tuple[int, ...]) -> None:
    net = BayesianModule(user, {".*": NORMAL, r"(2|head)\.bias": None}, vectorize="loop")
    x = torch.randn(shape)
    fit(regression(net), AutoNormal(regression(net)), x, torch.randn(6))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for twin in (copy.deepcopy(net), torch.load(file, weights_only=False), net):
        pyro.set_rng_seed(3)
        output = twin(x)
        pyro.set_rng_seed(3)
        torch.testing.assert_close(output, net(x), rtol=0, atol=0)
        assert twin(x).isfinite().all()
    double = copy.deepcopy(net).to(torch.float64)
    assert double(x.double()).dtype == torch.float64


def test_no_grad_and_inference_mode() -> None:
    net = BayesianModule(mlp(), NORMAL)
    x = torch.randn(5, 3)
    with torch.no_grad():
        assert not net(x).requires_grad
    with torch.inference_mode():
        net.to(torch.float64)(x.double())
    net(x.double().requires_grad_()).sum().backward()  # what inference_mode left behind is usable


@pytest.mark.parametrize("batch", [(), (4, 1)])
def test_autocast(batch: tuple[int, ...]) -> None:
    # Under vmap torch adds biases in float32 (pytorch/pytorch#192617): only values are compared.
    net = BayesianModule(mlp(), NORMAL)
    values = {name: torch.randn(*batch, *p.shape) for name, p in mlp().named_parameters()}
    x = torch.randn(5, 3)
    exact = poutine.condition(net, values)(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = poutine.condition(net, values)(x)
    assert output.shape == exact.shape
    assert not torch.equal(output.float(), exact)
    torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)


def test_modes_and_devices_reach_the_copy() -> None:
    net = BayesianModule(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), NORMAL)
    assert not net.eval().module[1].training
    assert net.train().module[1].training
    assert net.to("meta")(torch.empty(5, 3, device="meta")).shape == (5, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("user, shape", [(mlp(), (6, 3)), (Recurrent(), (6, 5, 3))])
def test_priors_and_network_follow_to_the_gpu(user: nn.Module, shape: tuple[int, ...]) -> None:
    net = BayesianModule(user, NORMAL, vectorize="loop").cuda()
    draws = {name: torch.randn(4, 1, *p.shape) for name, p in user.named_parameters()}
    x = torch.randn(shape)
    on_gpu = {name: value.cuda() for name, value in draws.items()}
    output = poutine.condition(net, on_gpu)(x.cuda())
    expected = poutine.condition(BayesianModule(user, NORMAL, vectorize="loop"), draws)(x)
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-3, atol=1e-3)
    trace = poutine.trace(net).get_trace(x.cuda())
    assert all(trace.nodes[name]["value"].is_cuda for name in net.site_names)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert poutine.condition(net, on_gpu)(x.cuda()).isfinite().all()


def test_repr_tells_what_is_random() -> None:
    net = BayesianModule(mlp(), {"0.*": NORMAL}, name="net")
    expected = "name='net', stochastic: 2 tensors with 16 weights, deterministic: 2 tensors"
    assert f"{expected}, local=False" in repr(net)
    assert "deterministic" not in repr(BayesianModule(mlp(), NORMAL, local=True))


def test_value_of_a_wrong_shape_names_the_site() -> None:
    net = BayesianModule(mlp(), NORMAL)
    with pytest.raises(
        ShapeError, match=r"site '0.weight'.*\(3, 4\).*parameter has shape \(4, 3\)"
    ):
        poutine.condition(net, {"0.weight": torch.zeros(3, 4)})(torch.randn(5, 3))
    values = {"0.weight": torch.zeros(2, 1, 4, 3), "0.bias": torch.zeros(5, 1, 4)}
    with pytest.raises(ShapeError, match=r"broadcast.*'0.weight': \(2, 1\), '0.bias': \(5, 1\)"):
        poutine.condition(net, values)(torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_model_evaluates_the_same_network():
    """As NUTS(model, jit_compile=True) does; torch refuses to trace its own functional_call."""
    net = BayesianModule(
        nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), dist.Normal(0.0, 1.0)
    )
    x = torch.randn(4, 2)
    kept = {name: value.clone() for name, value in net.module.state_dict().items()}

    def density(weight):
        data = {site: value.detach() for site, value in values.items()} | {first: weight}
        return pyro.poutine.trace(pyro.condition(net, data=data)).get_trace(x).log_prob_sum()

    trace = pyro.poutine.trace(net).get_trace(x)
    values = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
    first = next(name for name in values if "weight" in name)
    traced = torch.jit.trace(density, (values[first],), check_trace=False)
    other = torch.randn_like(values[first])
    torch.testing.assert_close(traced(other), density(other))
    output = net(x)
    assert output.shape == (4, 1)
    for name, value in net.module.state_dict().items():
        torch.testing.assert_close(value, kept[name])


def test_complex_weights_are_refused() -> None:
    net = nn.Linear(2, 1, dtype=torch.complex64)
    with pytest.raises(ArgumentError, match="weight, bias are complex, .*torch.complex"):
        BayesianModule(net, dist.Normal(0.0, 1.0))


def test_memory_that_does_not_suffice_once_does_not_turn_vmap_off(monkeypatch):
    net = BayesianModule(mlp(), prior=NORMAL)

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pyro.plate("draws", 3, dim=-2):
        monkeypatch.setattr(net, "_is_faster_in_a_loop", lambda: False)
        with monkeypatch.context() as patched:
            patched.setattr("pyro_implicit.bayesian.module.over_draws", full)
            with pytest.raises(torch.OutOfMemoryError):
                net(torch.ones(2, 3))
        assert net(torch.ones(2, 3)).shape == (3, 2, 1) and not net._vmap_fails


def test_pyros_structured_guide_trains_a_network():
    """The shapes of its values may be plain tuples."""
    net = BayesianModule(mlp(), prior=NORMAL)
    model = regression(net)
    guide = AutoStructured(model, conditionals="normal", dependencies="linear")
    x, y = torch.randn(6, 3), torch.randn(6)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert math.isfinite(svi.step(x, y))
    assert math.isfinite(evaluate(model, guide, x, y, num_samples=5)["y"].log_density.value)
