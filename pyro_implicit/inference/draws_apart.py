"""Refuses models in which draws that are evaluated at once have to do with each other."""

# Shape legend: S draws evaluated together.
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_implicit._random import read_torch_state, seed_torch
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.asked_values import AskedValues
from pyro_implicit.handlers.row_coupling import same_first_draw, tensors_of
from pyro_implicit.inference.predictive_run import PredictiveRun, RunPlan

__all__ = ["DrawsApart"]

_REMEDY = (
    "Count dimensions from the right and name them, w[..., 0] and (w * x).sum(-1), not w[0] and "
    "w.sum(), or leave parallel out."
)
_TOLERANCE = 1e-3  # of a tensor's largest number: sums in other orders
_ROUNDINGS = 8  # of half precision


class DrawsApart:
    """
    Two draws of a model at once, beside another second draw and beside each by itself.

    All runs have the noise of the first: what a sampler draws in two stages shifts with the
    parameters of other draws. A second draw that changes what the first predicts is seen whatever
    the model draws by itself (dropout). Each draw by itself shows what is one answer for all draws
    (a branch on any of them, their number, the largest); of a model that draws numbers of its own
    it can only be seen where a value is asked for.

    :param RunPlan plan: of the predictions.
    :param evaluate: a run of the model at two draws, or at one by itself, by whether they are in
        one pass; it takes ``given`` noise and ``given_rows`` as :class:`PredictiveRun` does.
    :param int rows: as many as it evaluates.
    """

    def __init__(self, plan: RunPlan, evaluate: Callable[..., PredictiveRun], rows: int) -> None:
        self.plan, self._evaluate, self._rows = plan, evaluate, rows

    def check(self) -> None:
        """
        Runs them.

        :raises SiteError: naming the site, or the line that asks for a value.
        """
        both = self._run([0, 1])
        alone = [self._run_alone(both, index) for index in (0, 1)]
        twice = self._run([0, 0], both.noise)
        for name in both.functions.keys() & twice.functions.keys():
            if not self._is_same_first(name, both, twice):
                raise self._refusal(name)
        for index, run in enumerate(alone):
            for name in both.functions:
                if run is not None and not self._is_same_alone(name, both, run, index):
                    raise self._refusal(name)

    def _run(self, which: list[int], noise: dict[str, Tensor] | None = None) -> PredictiveRun:
        """The model at some of the draws: a pair in one pass, or one by itself."""
        draws, offset = self.plan.draws, self.plan.offset
        given = {} if noise is None else {"given": noise, "given_rows": self._rows}
        self.plan.draws = {name: value[which] for name, value in draws.items()}
        self.plan.offset = 0
        try:
            return self._evaluate(len(which) > 1, **given)
        finally:
            self.plan.draws, self.plan.offset = draws, offset

    def _is_same_first(self, name: str, one: PredictiveRun, other: PredictiveRun) -> bool:
        """Whether the first draw has the same value, or distribution, in both runs."""
        if name in one.noise:
            nesting = self.plan.layout.nesting
            return same_first_draw(one.functions[name], other.functions[name], nesting)
        if name not in one.values:
            return True
        a, b = one.values[name][0], other.values[name][0]
        return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)

    def _run_alone(self, both: PredictiveRun, index: int) -> PredictiveRun | None:
        """One draw by itself; None if the model drew numbers of its own, or does not run so."""
        noise = {name: self._of_draw(name, value, index) for name, value in both.noise.items()}
        try:
            with AskedValues(self.plan.draws.values()) as asked:
                alone = self._run([index], noise)
        except Exception:  # whatever a model does with noise that was drawn for many
            return None
        if asked.place is not None:
            raise SiteError(
                "with parallel=True the model asks for the value of what depends on its latents "
                f"({asked.place}), as if (w > 0).any():, float(), .item(), .numpy() and w[w > 0] "
                "do: one question about all draws, and one answer. Write torch.where(w > 0, a, b), "
                "or leave parallel out."
            )
        return None if self._has_drawn() else alone

    def _has_drawn(self) -> bool:
        """Whether the generators are elsewhere than at the beginning of a run."""
        left = read_torch_state()
        seed_torch(self.plan.own_seed(0, self._rows))
        begun = read_torch_state()
        return any(not torch.equal(left[kind], begun[kind]) for kind in begun)

    def _of_draw(self, name: str, value: Tensor, index: int) -> Tensor:
        """The noise of one draw, of the shape that a site has in a run by itself."""
        depth = len(self.plan.layout.shapes[name])
        if value.dim() <= depth:
            return value
        return value[index].reshape(value.shape[value.dim() - depth :])

    def _is_same_alone(
        self, name: str, both: PredictiveRun, alone: PredictiveRun, index: int
    ) -> bool:
        """Whether one of two draws has the same value, or distribution, by itself."""
        nesting = self.plan.layout.nesting
        if name not in alone.functions:
            return True
        if name in both.noise:
            by_itself = dict(tensors_of(alone.functions[name]))
            return all(
                _is_near(tensor, by_itself[path], index, nesting)
                for path, tensor in tensors_of(both.functions[name])
                if path in by_itself
            )
        if name not in both.values:
            return True
        return _is_near(both.values[name][index], alone.values[name][0], index, nesting)

    def _refusal(self, name: str) -> SiteError:
        return SiteError(
            f"with parallel=True what one draw predicts at site {name!r} depends on the other "
            f"draws. {_REMEDY}"
        )


def _is_near(many: Tensor, one: Tensor, index: int, nesting: int) -> bool:
    """Up to rounding; what cannot be held against each other is."""
    if many.shape != one.shape and many.dim() > nesting and len(many) == 2:
        many = many[index]
    if many.numel() == one.numel():
        many = many.reshape(one.shape)
    try:
        many, one = torch.broadcast_tensors(many, one)
    except RuntimeError:
        return True
    if not one.is_floating_point():
        return torch.equal(many, one)
    tolerance = max(_TOLERANCE, _ROUNDINGS * _precision(one))
    largest = one[one.isfinite()].abs().max() if one.isfinite().any() else 0.0
    return torch.allclose(
        many, one, rtol=tolerance, atol=float(tolerance * largest) + 1e-5, equal_nan=True
    )


def _precision(values: Tensor) -> float:
    """Of what made them, which may be half precision within autocast."""
    dtype = values.dtype
    if torch.is_autocast_enabled(values.device.type):
        dtype = torch.get_autocast_dtype(values.device.type)
    return torch.finfo(dtype).eps
