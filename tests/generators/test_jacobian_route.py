"""The gradient of a module's Jacobian is right, or refused, whatever torch makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit import ImplicitDistribution, SingularValueELBO
from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators import ModuleGenerator, jacobian_route
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.jacobian_route import right_route
from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.generators.rescaled import rescaled
from pyro_implicit.objectives.implicit_site import ImplicitSite

M = 4


class Between(nn.Module):
    """Two linear layers with an operation between them."""

    def __init__(self, operation: Callable[[Tensor], Tensor], d: int, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(d, 8), nn.Linear(hidden, M)
        self.operation = operation

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.last(self.operation(self.first(z)))
        return out


def in_place(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, ::2] = torch.tanh(h[:, ::2])
    return h.mul_(1.5).add_(0.1).sigmoid_()


def normalised_across(h: Tensor) -> Tensor:
    return torch.tanh(F.batch_norm(h.T, None, None, training=True).T)


def natively_normalised(h: Tensor) -> Tensor:
    return torch.tanh(torch.native_layer_norm(h, (8,), None, None, 1e-5)[0])


def distances(h: Tensor) -> Tensor:
    centres = torch.arange(40.0, dtype=h.dtype).reshape(5, 8).sin()
    return torch.cdist(h, centres)


def plain(h: Tensor) -> Tensor:
    return torch.tanh(F.layer_norm(h, (8,)))


OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "in place": (in_place, 8),
    "batch normalisation across": (normalised_across, 8),
    "native layer normalisation": (natively_normalised, 8),
    "distances": (distances, 5),
    "plain": (plain, 8),
}


def generator_of(name: str, d: int) -> ModuleGenerator:
    torch.manual_seed(1)
    operation, hidden = OPERATIONS[name]
    return ModuleGenerator(Between(operation, d, hidden).double(), (d,), M)


def slope(function: Callable[[], Tensor], weight: Tensor, direction: Tensor) -> float:
    """By finite differences."""
    step = 1e-5
    with torch.no_grad():
        weight += step * direction
        above = float(function())
        weight -= 2 * step * direction
        below = float(function())
        weight += step * direction
    return (above - below) / (2 * step)


def expect_slope(function: Callable[[], Tensor], weight: Tensor) -> None:
    torch.manual_seed(2)
    direction = torch.randn_like(weight)
    found = torch.autograd.grad(function(), weight)[0]
    expected = slope(function, weight, direction)
    assert float((found * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def wrapped(generator: ModuleGenerator, how: str) -> Any:
    if how == "rescaled":
        return rescaled(generator, 0.3)
    if how == "conditioned":
        return Conditioned(generator, torch.full((1,), 0.4, dtype=torch.float64))
    return generator


def determinant(fn: ImplicitDistribution) -> Tensor:
    return fn.half_log_det().sum()


def smallest_singular_value(fn: ImplicitDistribution) -> Tensor:
    site = ImplicitSite("w", fn, fn.mean, ("w",))
    return SingularValueELBO(num_iterations=20, warm_start=False).estimate(site).sum()


@pytest.mark.parametrize("value", [determinant, smallest_singular_value])
@pytest.mark.parametrize("how", ["alone", "rescaled", "conditioned"])
@pytest.mark.parametrize("d", [3, 6])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_made_of_the_jacobian_has_the_slope_of_finite_differences(
    name: str, d: int, how: str, value: Callable[[ImplicitDistribution], Tensor]
) -> None:
    inner = generator_of(name, d)
    fn = ImplicitDistribution(wrapped(inner, how), scale=0.1)
    z = torch.randn(3, fn.generator.noise_dim, dtype=torch.float64)
    expect_slope(lambda: value(fn.given(z)), inner.module.first.weight)


def test_the_generator_alone_has_the_right_gradient() -> None:
    for name in OPERATIONS:
        generator = generator_of(name, 3)
        z = torch.randn(3, 3, dtype=torch.float64)
        for scale in (0.1, torch.tensor(0.3, dtype=torch.float64)):
            expect_slope(
                lambda g=generator, z=z, s=scale: g.half_log_det(z, s).sum(),
                generator.module.first.weight,
            )


def test_routes_are_found_once_and_draw_no_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        jacobian_route, "_first_right_route", lambda part, like: calls.append(part) or "reverse"
    )
    generator, state = generator_of("plain", 3), torch.get_rng_state()
    with torch.no_grad():
        assert right_route(generator, torch.zeros(3)) is None
    assert not calls
    for _ in range(3):
        assert right_route(generator, torch.zeros(3)) == "reverse"
    assert len(calls) == 1
    generator.eval()
    assert right_route(generator, torch.zeros(3)) == "reverse"
    assert len(calls) == 2 and torch.equal(state, torch.get_rng_state())


def test_a_plain_module_goes_the_first_way() -> None:
    for d, route in ((3, "forward"), (6, "reverse")):
        assert right_route(generator_of("plain", d), torch.zeros(d)) == route


def test_without_a_right_route_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = jacobian_route._jacobian
    monkeypatch.setattr(
        jacobian_route,
        "_jacobian",
        lambda *where: right(*where).square(),  # another gradient
    )
    generator = generator_of("plain", 3)
    for _ in range(2):
        with pytest.raises(LayerError, match="Jacobian of the generator Between wrongly.*Lanczos"):
            right_route(generator, torch.zeros(3))


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient

    @staticmethod
    def jvp(ctx: Any, direction: Tensor) -> Tensor:  # type: ignore[override]
        return 0 * direction


def hidden(h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(h)
    return h * gate


@pytest.mark.parametrize("operation", [hidden, Rounded.apply], ids=["no_grad", "straight-through"])
def test_a_part_that_is_hidden_from_the_derivative_is_refused(
    operation: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    generator = ModuleGenerator(Between(operation, 3), (3,), M)
    with pytest.raises(LayerError, match=r"Between has two derivatives.*KernelDensityRatioELBO"):
        check_function_of_noise(generator, torch.zeros(3))


def checkpointed(h: Tensor) -> Tensor:
    out: Tensor = torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=False)
    return out


def test_what_has_no_derivative_by_torch_func_is_named() -> None:
    generator = ModuleGenerator(Between(checkpointed, 3), (3,), M)
    fn = ImplicitDistribution(generator, scale=0.1).given(torch.zeros(2, 3))
    for call in (fn.half_log_det, fn.linearisation):
        with pytest.raises(LayerError, match=r"cannot take the derivative.*torch\.utils\.checkpoi"):
            call()


def bag(h: Tensor) -> Tensor:
    rows = torch.zeros(len(h), 8, dtype=torch.long)
    weights = h.sin().contiguous()
    return h * F.embedding_bag(rows, torch.ones(1, 1), per_sample_weights=weights, mode="sum")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_operation_without_a_second_derivative_is_named_before_the_first_gradient() -> None:
    generator = ModuleGenerator(Between(bag, 3), (3,), M)
    with pytest.raises(LayerError, match="no second derivative of 'embedding_bag_per_sample_weig"):
        ImplicitDistribution(generator, scale=0.1).given(torch.zeros(2, 3)).half_log_det()


def test_an_error_of_the_module_itself_stays_what_it_is() -> None:
    def broken(h: Tensor) -> Tensor:
        raise KeyError("mine")

    generator = ModuleGenerator(Between(broken, 3), (3,), M)
    with pytest.raises(KeyError, match="mine"):
        generator.linearise(torch.zeros(2, 3))
