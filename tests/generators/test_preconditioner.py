from __future__ import annotations

import pytest
import torch

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators.preconditioner import Preconditioner, _log_abs_det

FACTORS = {
    "none": None,
    "diagonal": torch.tensor([0.5, -2.0, 3.0]),
    "full": torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.1, 0.0], [0.0, 1.0, -4.0]]),
}


@pytest.mark.parametrize("kind", sorted(FACTORS))
@pytest.mark.parametrize("batch", [(), (4,), (2, 1)])
def test_it_is_the_affine_map_that_it_says(kind: str, batch: tuple[int, ...]) -> None:
    loc = torch.arange(3.0)
    made = Preconditioner(loc, FACTORS[kind])
    w = torch.randn(*batch, 3)
    jac = torch.autograd.functional.jacobian(made, w.reshape(-1, 3)[0])
    torch.testing.assert_close(made(w), loc + w @ jac.mT)
    torch.testing.assert_close(made.log_abs_det, torch.linalg.slogdet(jac).logabsdet)
    assert made.kind == kind
    assert not list(made.parameters())


@pytest.mark.parametrize("kind", sorted(FACTORS))
@pytest.mark.parametrize("batch", [(), (1,), (3,), (4,), (2, 1), (2, 3)])
def test_its_inverse_undoes_it_for_any_batch(kind: str, batch: tuple[int, ...]) -> None:
    made = Preconditioner(torch.arange(3.0), FACTORS[kind]).double()
    w = torch.randn(*batch, 3).double().requires_grad_()
    u = made(w)
    torch.testing.assert_close(made.inverse(u), w)
    (gradient,) = torch.autograd.grad(made.inverse(u).sum(), w)  # both ways: the identity
    torch.testing.assert_close(gradient, torch.ones_like(w))


@pytest.mark.parametrize("kind", sorted(FACTORS))
def test_its_state_is_saved_and_its_tensors_are_its_own(kind: str) -> None:
    loc, factor = torch.randn(3, requires_grad=True), FACTORS[kind]
    made = Preconditioner(loc, factor)
    blank = None if factor is None else torch.ones_like(factor)
    other = Preconditioner(torch.zeros(3), torch.eye(3) if kind == "full" else blank)
    other.load_state_dict(made.state_dict())
    with torch.no_grad():
        loc.add_(1.0)
    w = torch.randn(2, 3)
    torch.testing.assert_close(other(w), made(w))
    torch.testing.assert_close(other.log_abs_det, made.log_abs_det)
    assert not made.loc.requires_grad and not made.loc.equal(loc)


def test_the_determinant_is_kept_in_the_dtype_of_the_location() -> None:
    made = Preconditioner(torch.zeros(400), torch.full((400,), 1e-3))  # product below float32
    assert made.log_abs_det.dtype == torch.float32
    assert made.log_abs_det.item() == pytest.approx(400 * torch.tensor(1e-3).log().item())


@pytest.mark.parametrize(
    ("loc", "factor"),
    [((), None), ((2, 2), None), ((3,), (2,)), ((3,), (3, 2)), ((3,), (1, 3, 3)), ((3,), ())],
)
def test_other_shapes_are_refused(loc: tuple[int, ...], factor: tuple[int, ...] | None) -> None:
    with pytest.raises(ShapeError, match=r"preconditioner with loc .* expected loc \(m,\)"):
        Preconditioner(torch.zeros(loc), None if factor is None else torch.ones(factor))


@pytest.mark.parametrize("kind", sorted(FACTORS))
def test_a_location_that_is_learned_moves_in_its_units(kind: str) -> None:
    loc, unit = torch.arange(3.0), torch.tensor([1.0, 0.1, 10.0])
    fixed, made = Preconditioner(loc, FACTORS[kind]), Preconditioner(loc, FACTORS[kind], unit)
    w = torch.randn(2, 3)
    assert torch.equal(made(w), fixed(w)) and torch.equal(made.centre, loc)
    with torch.no_grad():
        made.shift += 2.0
    torch.testing.assert_close(made(w), fixed(w) + 2 * unit)
    torch.testing.assert_close(made.inverse(made(w)), w)
    assert made.log_abs_det == fixed.log_abs_det
    with pytest.raises(ShapeError, match=r"of 3 latents with unit \(2,\); expected \(3,\)"):
        Preconditioner(loc, None, torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logarithms_are_not_rounded_to_half_precision(dtype: torch.dtype) -> None:
    factor = torch.full((4000,), 0.01, dtype=dtype)
    expected = 4000 * factor[0].double().log()
    assert _log_abs_det(factor).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_loaded_copy_has_the_same_bits() -> None:
    """A Cholesky factor lies in memory column by column, and products then have other last bits."""
    torch.manual_seed(0)
    a = torch.randn(5, 5)
    root = torch.linalg.cholesky(a @ a.mT + torch.eye(5))[1:, 1:]
    first = Preconditioner(torch.zeros(4), root)
    again = Preconditioner(torch.zeros(4), torch.eye(4))
    again.load_state_dict(first.state_dict())
    assert first.factor is not None and again.factor is not None
    assert first.factor.stride() == again.factor.stride()
    w = torch.randn(100, 4)
    assert torch.equal(first(w), again(w))


@pytest.mark.parametrize("wrong", [([0.0],), (torch.zeros(1), [1.0]), (torch.zeros(1), None, 1.0)])
def test_what_is_no_tensor_is_refused(wrong) -> None:
    with pytest.raises(ArgumentError, match="expected a tensor"):
        Preconditioner(*wrong)
