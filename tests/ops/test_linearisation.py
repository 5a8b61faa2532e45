"""Products with Jacobians: hand-written chains, and the fall-back for every other generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pyro_implicit.distributions import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import keep_linearisation
from pyro_implicit.exceptions import StateError
from pyro_implicit.generators import (
    CMMNN,
    MMNN,
    AutoregressiveGenerator,
    BijectiveGenerator,
    Generator,
    MLPGenerator,
    ModuleGenerator,
    ResidualGenerator,
)
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.rescaled import rescaled
from pyro_implicit.ops.linearisation import DenseLinearisation, FunctionLinearisation


class _Recurrent(nn.Module):
    """A layer that ``torch.func.vmap`` does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 5)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(self.layer(z[:, None])[0][:, 0])


GENERATORS: dict[str, Callable[[], Generator]] = {
    "perceptron": partial(MLPGenerator, 3, 5, (4, 6)),
    "perceptron with a skip": partial(MLPGenerator, 3, 5, (4,), skip=True),
    "more noise than outputs": partial(MLPGenerator, 6, 2, (4,), activation="sin"),
    "residual": partial(ResidualGenerator, 5, 3),
    "matrix": partial(MMNN, 7, noise_shape=(2, 3), hidden_shapes=[(3, 3)]),
    "matrix, in branches": partial(CMMNN, [3, 1, 7], noise_shape=(2, 2), budget=20.0),
    "autoregressive": partial(AutoregressiveGenerator, 5),
    "bijective": partial(BijectiveGenerator, 5, 4),
    "rescaled": lambda: rescaled(AutoregressiveGenerator(5), 0.7),
    "recurrent": lambda: ModuleGenerator(_Recurrent(), (3,), 5),
    "module": lambda: ModuleGenerator(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)), (3,), 5
    ),
    "module of matrices": lambda: ModuleGenerator(
        nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.SiLU(), nn.Linear(4, 5)), (2, 3), 5
    ),
}
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@pytest.fixture(params=GENERATORS)
def generator(request: pytest.FixtureRequest) -> Generator:
    made = GENERATORS[request.param]().double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def _autograd_jacobian(generator: Generator, z: Tensor) -> Tensor:
    flat = z.reshape(-1, *generator.noise_shape)
    rows = [
        torch.autograd.functional.jacobian(generator, row, create_graph=True).flatten(1)
        for row in flat
    ]
    batch = z.shape[: z.dim() - len(generator.noise_shape)]
    return torch.stack(rows).reshape(*batch, *rows[0].shape)


def _noise(generator: Generator, batch: tuple[int, ...]) -> Tensor:
    return torch.randn(*batch, *generator.noise_shape, dtype=torch.float64)


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize("probes", [(), (1,), (2, 3)])
def test_products_are_those_of_autograd(
    generator: Generator, batch: tuple[int, ...], probes: tuple[int, ...]
) -> None:
    z = _noise(generator, batch)
    lin, jac = generator.linearise(z), _autograd_jacobian(generator, z)
    m, d = generator.output_dim, generator.noise_dim
    assert (lin.batch_shape, lin.output_dim, lin.input_dim) == (batch, m, d)
    torch.testing.assert_close(lin.value, generator(z))
    v = torch.randn(*probes, *batch, d, dtype=torch.float64)
    u = torch.randn(*probes, *batch, m, dtype=torch.float64)
    torch.testing.assert_close(lin.jvp(v), (jac @ v[..., None])[..., 0])
    torch.testing.assert_close(lin.vjp(u), (jac.mT @ u[..., None])[..., 0])
    torch.testing.assert_close(lin.jacobian(), jac)
    torch.testing.assert_close(lin.jacobian(), generator.jacobian(z))


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_what_products_met_gives_the_gradient(generator: Generator, batch: tuple[int, ...]) -> None:
    """That of ``u' J v``, of each draw by itself; for combinations of ``u`` and ``v`` too."""
    z, count = _noise(generator, batch), len(batch)
    lin = generator.linearise(z)
    v = torch.randn(2, *batch, generator.noise_dim, dtype=torch.float64)
    u = torch.randn(2, *batch, generator.output_dim, dtype=torch.float64)
    share, mix = torch.rand(batch, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)

    def mixed(x: Tensor) -> Tensor:
        return torch.tensordot(mix, x, 1)

    with torch.no_grad():
        (product, of_v), (back, of_u) = lin.kept_jvp(v), lin.kept_vjp(u)
        torch.testing.assert_close((product, back), (lin.jvp(v), lin.vjp(u)))
    of_v, of_u = [mixed(one) for one in of_v], [mixed(one) for one in of_u]
    pairing = lin.pairing(mixed(u), of_v, of_u)
    if not count:  # as the only one of a batch
        unsqueezed = lin.unsqueezed()
        with torch.no_grad():
            again = [unsqueezed.kept_jvp(v[:, None]), unsqueezed.kept_vjp(u[:, None])]
        torch.testing.assert_close(again[0][0][:, 0], product)
        torch.testing.assert_close(again[1][0][:, 0], back)
        kept = [[mixed(one) for one in one_side] for _, one_side in again]
        pairing = unsqueezed.pairing(mixed(u)[:, None], *kept)[0]
    expected = (mixed(u) * lin.jvp(mixed(v))).sum(-1).sum(0)
    assert pairing.shape == batch
    gradients = [
        torch.autograd.grad(
            (share * value).sum(),
            list(generator.parameters()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        for value in (pairing, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_products_have_the_gradients_of_autograd(generator: Generator) -> None:
    z = _noise(generator, (2,))
    m, d = generator.output_dim, generator.noise_dim
    v = torch.randn(2, d, dtype=torch.float64)
    u = torch.randn(2, m, dtype=torch.float64)
    parameters = list(generator.parameters())
    for mine, brute in (
        (lambda: generator.linearise(z).jvp(v), lambda jac: jac @ v[..., None]),
        (lambda: generator.linearise(z).vjp(u), lambda jac: jac.mT @ u[..., None]),
    ):
        found = torch.autograd.grad(mine().square().sum(), parameters, allow_unused=True)
        value = brute(_autograd_jacobian(generator, z)).square().sum()
        wanted = torch.autograd.grad(value, parameters, allow_unused=True)
        for parameter, one, other in zip(parameters, found, wanted, strict=True):
            zero = torch.zeros_like(parameter)
            torch.testing.assert_close(
                zero if one is None else one, zero if other is None else other
            )


def test_no_graph_without_gradients(generator: Generator) -> None:
    with torch.no_grad():
        lin = generator.linearise(_noise(generator, (2,)))
        product = lin.jvp(torch.randn(2, generator.noise_dim, dtype=torch.float64))
    assert not product.requires_grad
    lin = generator.linearise(_noise(generator, (2,)))
    with torch.no_grad():
        product = lin.vjp(torch.randn(2, generator.output_dim, dtype=torch.float64))
    assert not product.requires_grad


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from(["none", "diagonal", "matrix"]),
    batches,
)
def test_dense_chain(d: int, hidden: list[int], m: int, kind: str, batch: tuple[int, ...]) -> None:
    if kind == "diagonal":
        m = d
    sizes = [d, *hidden, m]
    weights = [
        torch.randn(b, a, dtype=torch.float64) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    slopes = [torch.randn(*batch, h, dtype=torch.float64) for h in hidden]
    skip = {"none": None, "diagonal": torch.randn(d).double(), "matrix": torch.randn(m, d).double()}
    lin = DenseLinearisation(
        torch.zeros(*batch, m, dtype=torch.float64), weights, slopes, skip[kind]
    )
    jac = weights[0].expand(*batch, -1, -1)
    for weight, slope in zip(weights[1:], slopes, strict=True):
        jac = weight @ (slope[..., None] * jac)
    if kind != "none":
        jac = jac + (torch.diag(skip[kind]) if kind == "diagonal" else skip[kind])
    torch.testing.assert_close(lin.jacobian(), jac)
    u = torch.randn(3, *batch, m, dtype=torch.float64)
    torch.testing.assert_close(lin.vjp(u), (jac.mT @ u[..., None])[..., 0])


def test_a_first_product_without_gradients_leaves_them_to_later_ones(generator: Generator) -> None:
    """As of objectives that search by products without, and differentiate one at the end."""
    torch.manual_seed(0)
    z = _noise(generator, (3,))
    v = torch.randn(1, 3, generator.noise_dim, dtype=torch.float64)
    u = torch.randn(1, 3, generator.output_dim, dtype=torch.float64)
    expected = torch.einsum("pnm,nmd,pnd->", u, generator.jacobian(z), v)
    parameters = [p for p in generator.parameters() if p.requires_grad]
    right = torch.autograd.grad(expected, parameters, materialize_grads=True)
    for by in ("jvp", "vjp", "pairing"):
        products = generator.linearise(z)
        with torch.no_grad():
            tangents, cotangents = products.kept_jvp(v)[1], products.kept_vjp(u)[1]
        number = {
            "jvp": lambda lin=products: (u * lin.jvp(v)).sum(),
            "vjp": lambda lin=products: (v * lin.vjp(u)).sum(),
            "pairing": lambda lin=products, t=tangents, c=cotangents: lin.pairing(u, t, c).sum(),
        }[by]()
        found = torch.autograd.grad(number, parameters, materialize_grads=True)
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other)


def test_fall_back_sees_each_row_by_itself() -> None:
    seen: list[Any] = []

    def function(rows: Tensor) -> Tensor:
        seen.append(tuple(rows.shape))
        return rows.flatten(1).sin()

    lin = FunctionLinearisation(function, torch.randn(4, 5, 2, 3), noise_ndim=2)
    lin.jvp(torch.randn(2, 4, 5, 6))
    lin.vjp(torch.randn(2, 4, 5, 6))
    assert set(seen) == {(20, 2, 3)}
    assert lin.value.shape == (4, 5, 6)


def test_products_are_left_when_the_draws_are_let_go(generator: Generator) -> None:
    torch.manual_seed(0)
    z = _noise(generator, ())
    v = torch.randn(1, generator.noise_dim, dtype=torch.float64)
    u = torch.randn(1, generator.output_dim, dtype=torch.float64)
    whole, less = generator.linearise(z), generator.linearise(z)
    less.let_go()
    if less.holds_value:
        pytest.skip("whose draws stay, for the gradient of the determinant leads through them")
    assert whole.holds_value
    with pytest.raises(StateError, match="the draws of this linearisation were let go"):
        less.value  # noqa: B018
    assert (less.batch_shape, less.output_dim) == ((), generator.output_dim)
    one, other = less.unsqueezed(), whole.unsqueezed()
    assert not one.holds_value and one.batch_shape == (1,)
    torch.testing.assert_close(one.jvp(v[:, None]), other.jvp(v[:, None]))
    torch.testing.assert_close(less.jacobian(), whole.jacobian())
    (product, tangents), cotangents = less.kept_jvp(v), less.kept_vjp(u)[1]
    torch.testing.assert_close(
        less.pairing(u, tangents, cotangents), whole.pairing(u, tangents, cotangents)
    )
    torch.testing.assert_close(product, whole.jvp(v))
    other.let_go()
    assert not whole.holds_value


def test_wrapped_generators_let_go_of_all() -> None:
    inner = MLPGenerator(3, 5, (4,))
    found = rescaled(inner, 1.0).linearise(torch.randn(2, 3))
    found.let_go()
    assert not found.holds_value and not found._inner.holds_value  # type: ignore[attr-defined]
    first = Conditioned(MLPGenerator(5, 4, (3,)), torch.zeros(2, 2))
    found = first.linearise(torch.randn(2, 3))
    found.let_go()
    assert not found.holds_value and not found._inner.holds_value  # type: ignore[attr-defined]


def test_a_draw_is_made_again_where_it_was_let_go() -> None:
    fn = ImplicitDistribution(MMNN(7, noise_shape=(2, 3)), scale=0.1).given(torch.randn(2, 3))
    keep_linearisation(fn, every=True)
    torch.manual_seed(0)
    first = fn.rsample()
    assert not fn.linearisation().holds_value
    torch.manual_seed(0)
    torch.testing.assert_close(fn.rsample(), first)
