"""Refuses models in which draws that are evaluated at once have to do with each other."""

# Shape legend: S draws.
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import zip_longest

import torch
from torch import Tensor

from pyro_implicit._random import read_torch_state, seed_torch
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.looks.asked_values import AskedValues
from pyro_implicit.handlers.rows.row_coupling import same_first_draw, tensors_of
from pyro_implicit.inference.predictive_run import PredictiveRun
from pyro_implicit.inference.run_plan import RunPlan

__all__ = ["DrawsApart", "draws_with_extremes"]

_ADVICE_ON_DIMENSIONS = (
    "Count dimensions from the right and name them, w[..., 0] and (w * x).sum(-1), not w[0] and "
    "w.sum(), or leave parallel out."
)
_RELATIVE_TOLERANCE = 1e-3  # of a tensor's largest number: sums come in other orders
_TOLERANCE_IN_EPSILONS = 8  # of the dtype: the larger tolerance of the two in half precision
_NUM_EXTREMES_BY_THEMSELVES = 2  # draws with extremes that are evaluated one by one too
_MAX_ENTRIES_PER_LATENT = 8  # whose extremes are looked for one by one


class DrawsApart:
    """
    Draws of a model at once, beside other draws and beside some of them by themselves.

    All runs of two draws have the noise of the first: what a sampler draws in two stages shifts
    with the parameters of other draws. A second draw that changes what the first predicts is seen
    whatever the model draws by itself (dropout). Each draw by itself shows what is one answer for
    all draws (a branch on any of them, their number, the largest); of a model that draws numbers of
    its own it can only be seen where a value is asked for.

    What is rare (``(w > 2).any()``) is true of neither of two draws, nor of them together. So as
    many as are evaluated at once, those with the extremes of the latents among them, are held
    against four of them by themselves. What is common is not true of the draw whose largest number
    is the least, which is one of these.

    :param RunPlan plan: of the predictions.
    :param evaluate: a run of the model at so many draws, in one pass where there are several; it
        takes ``given`` noise and ``given_rows`` as :class:`PredictiveRun` does.
    :param int rows: as many as it evaluates.
    :param int most: draws that it may evaluate at once.
    """

    def __init__(
        self, plan: RunPlan, evaluate: Callable[..., PredictiveRun], rows: int, most: int
    ) -> None:
        self.plan, self._evaluate, self._rows, self._most = plan, evaluate, rows, most

    def check(self) -> None:
        """
        Runs them.

        :raises SiteError: naming the site, or the line that asks for a value.
        """
        both = self._run([0, 1])
        alone = {place: self._run_alone(both, place, place) for place in (0, 1)}
        twice = self._run([0, 0], both.noise)
        for name in both.functions.keys() & twice.functions.keys():
            if not self._is_same_first(name, both, twice):
                raise self._refusal(name)
        self._compare(both, alone)
        if alone[0] is None and alone[1] is None:  # nor could others be judged
            return
        which = draws_with_extremes(self.plan.draws, self._most)
        if len(which) > 2:
            many, count = self._run(which), len(which)
            places = {0, count // 3, *range(max(count - _NUM_EXTREMES_BY_THEMSELVES, 0), count)}
            runs = {
                place: self._run_alone(many, place, which[place], asks=False)
                for place in sorted(places)
            }
            self._compare(many, runs)

    def _compare(self, many: PredictiveRun, alone: dict[int, PredictiveRun | None]) -> None:
        """Refuses a pass in which one of its draws, by place, has something else by itself."""
        for place, run in alone.items():
            for name in many.functions:
                if run is not None and not self._is_same_alone(name, many, run, place):
                    raise self._refusal(name)

    def _run(self, which: list[int], noise: dict[str, Tensor] | None = None) -> PredictiveRun:
        """The model at some of the draws: several in one pass, or one by itself."""
        draws, offset = self.plan.draws, self.plan.offset
        given = {} if noise is None else {"given": noise, "given_rows": self._rows}
        self.plan.draws = {name: value[which] for name, value in draws.items()}
        self.plan.offset = 0
        try:
            return self._evaluate(len(which), **given)
        finally:
            self.plan.draws, self.plan.offset = draws, offset

    def _is_same_first(self, name: str, one: PredictiveRun, other: PredictiveRun) -> bool:
        """Whether the first draw has the same value, or distribution, in both runs."""
        if name in one.noise:
            nesting = self.plan.layout.nesting
            return same_first_draw(one.functions[name], other.functions[name], nesting)
        if name not in one.values:
            return True
        return _is_near(one.values[name][0], other.values[name][0])

    def _run_alone(
        self, many: PredictiveRun, place: int, index: int, *, asks: bool = True
    ) -> PredictiveRun | None:
        """
        The draw at a place of a pass, by itself; ``asks``: whether to look for questions.

        None if the model drew numbers of its own, or does not run so.
        """
        noise = {name: self._of_draw(name, value, place) for name, value in many.noise.items()}
        try:
            asked = AskedValues(self.plan.draws.values())
            with asked if asks else nullcontext():
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
        self, name: str, many: PredictiveRun, alone: PredictiveRun, place: int
    ) -> bool:
        """Whether one of several draws has the same value, or distribution, by itself."""
        nesting, count = self.plan.layout.nesting, many.last - many.first
        if name not in alone.functions:
            return True
        if name in many.noise:
            by_itself = dict(tensors_of(alone.functions[name]))
            return all(
                _is_near(_of_place(tensor, by_itself[path], place, count, nesting), by_itself[path])
                for path, tensor in tensors_of(many.functions[name])
                if path in by_itself
            )
        if name not in many.values:
            return True
        return _is_near(many.values[name][place], alone.values[name][0])

    def _refusal(self, name: str) -> SiteError:
        return SiteError(
            f"with parallel=True what one draw predicts at site {name!r} depends on the other "
            f"draws. {_ADVICE_ON_DIMENSIONS}"
        )


def draws_with_extremes(draws: dict[str, Tensor], most: int) -> list[int]:
    """
    Some of the draws, up to half of them those with the largest and smallest numbers.

    :param dict draws: by site, shape ``(S, ...)``.
    :param int most: how many at most.
    :returns: their numbers, the draw whose largest number is the least in front, and the others
        with extremes behind; none if there are no latents.
    """
    if not draws:
        return []
    total = len(next(iter(draws.values())))
    by_site = [_extremes(value.reshape(total, -1)) for value in draws.values()]
    extreme = [index for one in zip_longest(*by_site) for index in one if index is not None]
    count = min(total, most)
    kept = list(dict.fromkeys(extreme))[: count // 2]
    others = [index for index in range(total) if index not in kept]
    return kept[:1] + others[: count - len(kept)] + kept[:0:-1]


def _extremes(numbers: Tensor) -> list[int]:
    """Draws with the extremes of a latent, shape ``(S, m)``, the most telling first."""
    if not numbers.numel() or numbers.is_complex():
        return []
    numbers = numbers if numbers.is_floating_point() else numbers.float()
    largest, smallest = numbers.amax(1), numbers.amin(1)
    whole = [largest.argmin(), smallest.argmax(), largest.argmax(), smallest.argmin()]
    some = numbers[:, :_MAX_ENTRIES_PER_LATENT]
    found: list[int] = torch.cat([torch.stack(whole), some.argmax(0), some.argmin(0)]).tolist()
    return found


def _of_place(many: Tensor, one: Tensor, place: int, count: int, nesting: int) -> Tensor:
    """What a tensor of several draws has of the one at a place, if it has draws."""
    differs = many.shape != one.shape and many.dim() > nesting
    return many[place] if differs and len(many) == count else many


def _is_near(many: Tensor, one: Tensor) -> bool:
    """Up to rounding; what cannot be held against each other is."""
    if many.numel() == one.numel():
        many = many.reshape(one.shape)
    try:
        many, one = torch.broadcast_tensors(many, one)
    except RuntimeError:
        return True
    if not one.is_floating_point():
        return torch.equal(many, one)
    tolerance = max(_RELATIVE_TOLERANCE, _TOLERANCE_IN_EPSILONS * _precision(one))
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
