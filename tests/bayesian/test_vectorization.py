"""Many draws of a module's parameters at once: vmap, loop and one by one give the same outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call

from pyro_implicit.bayesian import module as bayesian_module
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.bayesian.vectorization import common_batch_shape
from pyro_implicit.exceptions import LayerError, ShapeError

NORMAL = dist.Normal(0.0, 1.0)


class Lambda(nn.Module):
    """A linear layer and then any function of its output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


class Squeezing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.head = nn.Linear(60, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv(x)
        return self.head(hidden.view(x.shape[0], -1)).squeeze(-1)


class LastState(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(x)[0][:, -1]


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x, need_weights=False)


def images() -> Tensor:
    return torch.randn(5, 2, 6, 7)


def sequences() -> Tensor:
    return torch.randn(5, 6, 4)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear": (lambda: nn.Linear(3, 2), lambda: torch.randn(5, 3)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, (3, 2)), images),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 1)), images),
    "squeezing": (Squeezing, images),
    "Embedding": (lambda: nn.Embedding(7, 3), lambda: torch.randint(7, (5, 4))),
    "GRU": (lambda: LastState(nn.GRU(4, 3, num_layers=2, batch_first=True)), sequences),
    "LSTM": (lambda: LastState(nn.LSTM(4, 3, batch_first=True)), sequences),
    "attention": (SelfAttention, sequences),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        sequences,
    ),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), sequences),
    "weight_norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        lambda: torch.randn(5, 3),
    ),
}


def leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if torch.is_tensor(leaf)]


@pytest.mark.filterwarnings("ignore:.*performance drop:UserWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_many_particles_equal_one_and_a_loop(layer: str, training: bool) -> None:
    make, make_input = LAYERS[layer]
    user, x = make().double().train(training), make_input()
    x = x.double() if x.is_floating_point() else x
    draws = {n: torch.randn(4, 1, *p.shape).double() for n, p in user.named_parameters()}
    with torch.no_grad():
        one_by_one = [
            leaves(functional_call(user, {n: d[i, 0] for n, d in draws.items()}, x))
            for i in range(4)
        ]
    for how in ("auto", "loop"):
        net = BayesianModule(user, NORMAL, vectorize=how)
        output = leaves(poutine.condition(net, draws)(x))
        for found, expected in zip(output, zip(*one_by_one, strict=True), strict=True):
            torch.testing.assert_close(found, torch.stack(expected))
    single = poutine.condition(net, {n: d[2, 0] for n, d in draws.items()})(x)
    torch.testing.assert_close(leaves(single), one_by_one[2])


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_gradients_of_all_draws(how: str) -> None:
    net = BayesianModule(Squeezing(), NORMAL, vectorize=how).double()
    x = images().double()
    draws = {n: torch.randn(3, 1, *p.shape).double() for n, p in Squeezing().named_parameters()}
    wanted = {n: d.clone().requires_grad_() for n, d in draws.items()}
    poutine.condition(net, wanted)(x).pow(2).sum().backward()
    for i in range(3):
        one = {n: d[i, 0].clone().requires_grad_() for n, d in draws.items()}
        poutine.condition(net, one)(x).pow(2).sum().backward()
        for name, value in one.items():
            torch.testing.assert_close(wanted[name].grad[i, 0], value.grad)


batches = st.lists(st.integers(1, 3), max_size=4).map(tuple)


@pytest.mark.long
@given(batch=batches, batch_dims=st.integers(0, 3), how=st.sampled_from(["vmap", "loop"]))
def test_where_the_batch_dims_go(batch: tuple[int, ...], batch_dims: int, how: Any) -> None:
    net = BayesianModule(nn.Linear(3, 2), NORMAL, batch_dims=batch_dims, vectorize=how)
    weight, bias, x = torch.randn(*batch, 2, 3), torch.randn(2), torch.randn(5, 4, 3)
    output = poutine.condition(net, {"weight": weight, "bias": bias})(x)
    lead = list(batch)
    while lead and lead[-1] == 1:
        lead.pop()
    if math.prod(batch) == 1:
        expected_lead: tuple[int, ...] = ()
    else:
        ones = len(batch) - len(lead)
        expected_lead = (*lead, *[1] * max(ones - batch_dims, 0))
    assert output.shape == (*expected_lead, 5, 4, 2)
    expected = torch.einsum("...ki,nmi->...nmk", weight, x) + bias
    torch.testing.assert_close(output.reshape(-1), expected.reshape(-1))


def test_particles_line_up_with_the_data_plate() -> None:
    net = BayesianModule(nn.Linear(3, 1), NORMAL)
    x, y = torch.randn(5, 3), torch.randn(5)

    def model() -> None:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pyro.plate("particles", 4, dim=-2):
        trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    assert trace.nodes["y"]["log_prob"].shape == (4, 5)
    for i in range(4):
        one = {name: trace.nodes[name]["value"][i, 0] for name in net.site_names}
        single = poutine.trace(poutine.condition(model, one)).get_trace()
        single.compute_log_prob()
        torch.testing.assert_close(trace.nodes["y"]["log_prob"][i], single.nodes["y"]["log_prob"])


def test_call_inside_of_the_data_plate_warns() -> None:
    net = BayesianModule(nn.Linear(3, 1), NORMAL)
    x = torch.randn(5, 3)
    with pytest.warns(UserWarning, match="inside of plate 'data' .* 5 times .* local=True"):
        with pyro.plate("data", 5):
            assert net(x).shape == (5, 5, 1)
    with pyro.plate("particles", 4):
        assert net(x).shape == (4, 5, 1)


def test_one_vectorised_particle_bypasses_vmap() -> None:
    net = BayesianModule(Lambda(lambda h: h * float(h.sum())), NORMAL, vectorize="vmap")
    with pyro.plate("particles", 1, dim=-2):  # float() of a batched tensor raises under vmap
        assert net(torch.randn(5, 3)).shape == (5, 2)


class Pair(NamedTuple):
    mean: Tensor
    count: int


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize(
    "function",
    [
        lambda h: (h, None),
        lambda h: {"a": h, "b": [h.sum(), True]},
        lambda h: Pair(h, len(h)),
    ],
)
def test_structured_outputs(function: Callable[[Tensor], Any], how: Any) -> None:
    user = Lambda(function)
    net = BayesianModule(user, NORMAL, vectorize=how)
    draws = {n: torch.randn(4, 1, *p.shape) for n, p in user.named_parameters()}
    x = torch.randn(5, 3)
    output = poutine.condition(net, draws)(x)
    each = [functional_call(user, {n: d[i, 0] for n, d in draws.items()}, x) for i in range(4)]
    assert type(output) is type(each[0])
    stacked = torch.utils._pytree.tree_map(
        lambda *same: torch.stack(same) if torch.is_tensor(same[0]) else same[0], *each
    )
    flat, spec = torch.utils._pytree.tree_flatten(output)
    flat_expected, spec_expected = torch.utils._pytree.tree_flatten(stacked)
    assert spec == spec_expected
    for found, expected in zip(flat, flat_expected, strict=True):
        if torch.is_tensor(expected):
            torch.testing.assert_close(found, expected)
        else:
            assert found == expected


@pytest.mark.parametrize("how", ["vmap", "loop", "auto"])
def test_outputs_that_cannot_be_stacked(how: Any) -> None:
    net = BayesianModule(Lambda(lambda h: object()), NORMAL, vectorize=how)
    with pytest.raises(LayerError, match="module returned a object, which cannot be stacked"):
        with pyro.plate("particles", 4, dim=-2):
            net(torch.randn(5, 3))


def test_what_vmap_cannot_do_falls_back_to_a_loop_with_one_warning() -> None:
    net = BayesianModule(Lambda(lambda h: h * 2 if h.sum() > 0 else h), NORMAL)
    x = torch.randn(5, 3)

    def model() -> Tensor:
        with pyro.plate("particles", 6, dim=-2):
            return net(x)

    match = r"vmap cannot evaluate Lambda .*vectorize='loop'.* reason was RuntimeError: vmap"
    with pytest.warns(UserWarning, match=match):
        first = poutine.trace(model).get_trace()
    draws = {name: first.nodes[name]["value"] for name in net.site_names}
    again = poutine.condition(model, draws)()  # no second warning: warnings are errors here
    torch.testing.assert_close(first.nodes["_RETURN"]["value"], again)


@pytest.mark.parametrize("local", [False, True])
def test_convolutions_go_through_a_loop(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a warning, and with the same numbers; networks of rows stay together."""
    asked = []
    for name in ("over_draws", "over_rows"):
        real = getattr(bayesian_module, name)

        def noted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            asked.append(kwargs["how"])
            return real(*args, **kwargs)

        monkeypatch.setattr(bayesian_module, name, noted)
    layers = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1))
    x, found = torch.randn(4, 1, 6), []
    for how in ("auto", "vmap"):
        net = BayesianModule(layers, dist.Normal(0.0, 1.0), local=local, vectorize=how)  # type: ignore[arg-type]
        pyro.set_rng_seed(0)
        plates = pyro.plate("draws", 3, dim=-2), pyro.plate("rows", 4, dim=-1)
        with plates[0], plates[1] if local else nullcontext():
            found.append(net(x))
    assert found[0].shape == (3, 4, 1)
    torch.testing.assert_close(*found)
    assert asked == (["vmap", "vmap"] if local else ["loop", "vmap"])


def test_errors_of_the_module_itself_come_through() -> None:
    net = BayesianModule(nn.Linear(3, 2), NORMAL)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        with pyro.plate("particles", 6, dim=-2):
            net(torch.randn(5, 4))


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_dropout_differs_between_draws(how: Any) -> None:
    user = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))
    net = BayesianModule(user, NORMAL, vectorize=how)
    weight, bias = torch.ones(2, 1, 50, 3), torch.ones(2, 1, 50)
    output = poutine.condition(net, {"0.weight": weight, "0.bias": bias})(torch.ones(1, 3))
    assert not torch.equal(output[0], output[1])


@given(
    sizes=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
    shape=st.lists(st.integers(1, 3), max_size=2).map(torch.Size),
)
def test_common_batch_shape(sizes: list[list[int]], shape: torch.Size) -> None:
    values = {str(i): torch.zeros((*size, *shape)) for i, size in enumerate(sizes)}
    shapes = dict.fromkeys(values, shape)
    try:
        expected = torch.broadcast_shapes(*map(tuple, sizes))
    except RuntimeError:
        with pytest.raises(ShapeError, match="must broadcast to one batch shape"):
            common_batch_shape(values, shapes)
    else:
        assert common_batch_shape(values, shapes) == expected


# ------------------------------------------------------------------------------- local=True


@pytest.mark.filterwarnings("ignore:.*performance drop:UserWarning")
@pytest.mark.parametrize("lead", [(), (3,), (3, 1), (1, 1)])
@pytest.mark.parametrize("layer", LAYERS)
def test_local_draws_pair_with_rows(layer: str, lead: tuple[int, ...]) -> None:
    make, make_input = LAYERS[layer]
    user, x = make().double(), make_input()
    x = x.double() if x.is_floating_point() else x
    draws = {n: torch.randn(*lead, 5, *p.shape).double() for n, p in user.named_parameters()}
    flat = {
        n: d.reshape(-1, 5, *p.shape)
        for (n, p), d in zip(user.named_parameters(), draws.values(), strict=True)
    }
    rows = [
        [
            leaves(functional_call(user, {n: d[i, j] for n, d in flat.items()}, x[j : j + 1]))
            for j in range(5)
        ]
        for i in range(math.prod(lead))
    ]
    expected = torch.stack([torch.cat([row[0] for row in same]) for same in rows])
    kept = lead if math.prod(lead) > 1 else ()
    for how in ("vmap", "loop"):
        net = BayesianModule(user, NORMAL, local=True, vectorize=how)
        output = leaves(poutine.condition(net, draws)(x))[0]
        assert output.shape[: len(kept) + 1] == (*kept, 5)
        torch.testing.assert_close(output.flatten(), expected.flatten())


class Scaled(nn.Linear):
    def forward(self, x: Tensor, scale: Tensor, *, shift: Any = 0.0) -> Tensor:
        return scale * super().forward(x) + shift


def test_local_model_with_several_arguments_trains() -> None:
    net = BayesianModule(Scaled(3, 1), NORMAL, local=True, name="net")
    x, y, scale = torch.randn(6, 3), torch.randn(6), torch.tensor(2.0)

    def model() -> Tensor:
        with pyro.plate("data", 6):
            mean = net(x, scale, shift=torch.ones(6, 1)).squeeze(-1)
            return pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    trace = poutine.trace(model).get_trace()
    weight, bias = (trace.nodes[f"net.{name}"]["value"] for name in ("weight", "bias"))
    assert weight.shape == (6, 1, 3)
    expected = 2 * (weight.squeeze(1) * x).sum(-1) + 2 * bias.squeeze(-1) + 1
    torch.testing.assert_close(trace.nodes["y"]["fn"].mean, expected)
    guide = AutoNormal(model, init_loc_fn=net.init_to_module)
    elbo = Trace_ELBO(num_particles=4, vectorize_particles=True)
    assert SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo).step() > 0
    torch.testing.assert_close(guide.locs.net.bias, net.module.bias.expand(6, 1), atol=0.02, rtol=0)


@pytest.mark.parametrize("how", ["vmap", "loop", "auto"])
@pytest.mark.parametrize(
    "shape, rows, found",
    [((), 5, r"\(1,\).*\[5\]"), ((5,), 4, r"\(5,\).*\[4\]"), ((5, 1), 5, r"\(5, 1\).*\[5\]")],
)
def test_local_draws_without_their_rows(shape: Any, rows: int, found: str, how: Any) -> None:
    net = BayesianModule(nn.Linear(3, 1), NORMAL, local=True, vectorize=how)
    draws = {"weight": torch.randn(*shape, 1, 3), "bias": torch.randn(*shape, 1)}
    with pytest.raises(ShapeError, match=f"batch shape {found}.*inside the data plate"):
        poutine.condition(net, draws)(torch.randn(rows, 3))


def test_local_needs_a_row_in_arguments_and_outputs() -> None:
    net = BayesianModule(Lambda(lambda h: h.sum()), NORMAL, local=True)
    with pytest.raises(ShapeError, match=r"output has shape \(\); expected the rows"):
        with pyro.plate("data", 5):
            net(torch.randn(5, 3))
    with pytest.raises(ShapeError, match=r"first sizes \[3, 5\]"), pyro.plate("data", 5):
        net(torch.randn(5, 3), torch.randn(3))
