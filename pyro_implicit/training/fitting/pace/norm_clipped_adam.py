"""Adam with gradients that are clipped where they are out of all proportion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_implicit.exceptions import StateError

__all__ = ["NormClippedAdam"]

_ROUNDING_FACTOR = 1.001  # a limit above a norm by more than this is so whatever the rounding
_NUM_GLANCED_ENTRIES = 256  # the first of a parameter, which show whether it was moved

_MAX_RELATIVE_NORM = 10.0  # of a gradient, to the geometric mean of the latest norms
_DECAY_PER_STEP = 0.98  # of the weights in this mean


class NormClippedAdam:
    """
    Torch's Adam for parameters by name, which may come one after the other.

    Gradients longer than ten times the geometric mean of the latest ones are cut to that, whatever
    the scale of the objective: a single draw from the tail cannot throw the parameters away.

    :param state: what :meth:`state` returned, to go on from.
    :param times: the factor of the rate for a parameter; 1 for all by default.
    """

    def __init__(
        self, state: Mapping[str, Any] | None = None, times: Callable[[Tensor], float] | None = None
    ) -> None:
        self._times = times or (lambda param: 1.0)
        self._saved: dict[str, Any] = dict(state["moments"]) if state else {}
        #: the sum of the logarithms of the lengths so far, weighted, and the sum of the weights
        norm: tuple[float, float] = state["norm"] if state else (0.0, 0.0)
        self._log_norm, self._weight = norm
        self._params: dict[str, Tensor] = {}
        self._known: set[int] = set()
        #: whether parameters have moved; set back by who asks
        self.has_stepped = False
        self._adam: torch.optim.Adam | None = None

    @property
    def params(self) -> dict[str, Tensor]:
        """All parameters so far, unconstrained, by name."""
        return dict(self._params)

    def forget(self) -> None:
        """Forgets the moments of all parameters, but not how long gradients usually are."""
        self._saved = {}
        if self._adam is not None:
            self._adam.state.clear()

    def stand_still(self) -> None:
        """Forgets where parameters were going to, but not how large their gradients are."""
        for moments in [*self._saved.values(), *(self._adam.state.values() if self._adam else ())]:
            moments["exp_avg"].zero_()

    def clear(self) -> None:
        """Forgets all gradients."""
        for param in self._params.values():
            param.grad = None

    def step(self, params: Mapping[str, Tensor], lr: float) -> bool:
        """
        Takes one step along the gradients, and forgets them.

        :param params: unconstrained parameters by name.
        :param float lr: the learning rate.
        :returns: whether it was taken: not if a gradient is not finite.
        :raises StateError: if the saved state is of other parameters.
        """
        self.take(params)
        trained = [param for param in self._params.values() if param.grad is not None]
        if not trained or self._adam is None:
            return True
        norm = self._clip(trained)
        if math.isfinite(norm):
            self._move(self._adam, norm, lr)
        self.clear()
        return math.isfinite(norm)

    def state(self) -> dict[str, Any]:
        """Copies of all moments, by the name of their parameter."""
        moments = dict(self._saved)
        for name, param in self._params.items():
            if self._adam is not None and param in self._adam.state:
                moments[name] = _copy(self._adam.state[param])
        return {"moments": moments, "norm": (self._log_norm, self._weight)}

    def take(self, params: Mapping[str, Tensor]) -> None:
        """
        Adds parameters that are new, with their saved moments.

        :param params: unconstrained parameters by name.
        :raises StateError: if the saved state is of other parameters.
        """
        new = {n: p for n, p in params.items() if id(p) not in self._known and p.requires_grad}
        new = {n: p for n, p in new.items() if p.is_floating_point()}
        if not new:
            return
        self._known |= {id(param) for param in new.values()}
        groups: dict[float, list[Tensor]] = {}
        for param in {id(param): param for param in new.values()}.values():
            groups.setdefault(self._times(param), []).append(param)
        for times, tensors in groups.items():
            group = {"params": tensors, "fused": _can_fuse(tensors), "times": times}
            if self._adam is None:
                self._adam = torch.optim.Adam([group])
            else:
                self._adam.add_param_group(group)
        assert self._adam is not None
        for name, param in new.items():
            self._params[name] = param
            if name in self._saved:
                moments = _copy(self._saved.pop(name), param)
                _check_fits(name, moments, param)
                self._adam.state[param] = moments

    def _clip(self, trained: list[Tensor]) -> float:
        """The length of all gradients together, which are cut if it is more than allowed."""
        limit, norm = self._limit(), _length([param.grad for param in trained])
        if limit > _ROUNDING_FACTOR * (norm + 1e-6) or not math.isfinite(norm):
            return norm  # torch would multiply them by 1
        return float(torch.nn.utils.clip_grad_norm_(trained, limit))

    def _move(self, adam: torch.optim.Adam, norm: float, lr: float) -> None:
        """Moves all parameters; what was interrupted is known to have moved them, or not."""
        before: list[tuple[Any, Tensor, _Glance]] = []
        for group in adam.param_groups:
            group["lr"] = lr * group["times"]
            trained = [param for param in group["params"] if param.grad is not None]
            if trained:
                one = min(trained, key=Tensor.numel)
                before.append((group, one, _Glance.at(one, adam.state.get(one))))
        try:
            adam.step()
        except KeyboardInterrupt:  # those in its kernels come after them
            left = [
                group for group, one, was in before if not self._has_moved(adam, group, one, was)
            ]
            if len(left) == len(before):
                raise
            groups, adam.param_groups = adam.param_groups, left
            adam.step()  # half a step is none to go on from
            adam.param_groups = groups
            self._note(norm)
            raise
        self._note(norm)

    def _note(self, norm: float) -> None:
        self._remember(norm)
        self.has_stepped = True

    def _has_moved(self, adam: torch.optim.Adam, group: Any, one: Tensor, before: _Glance) -> bool:
        """Whether a broken step has moved a group; one that was only counted no longer is."""
        now = adam.state.get(one)
        if not now:
            return False
        if not now["exp_avg_sq"].flatten()[: len(before.squares)].equal(before.squares):
            return True
        if float(now["step"]) > float(before.step):
            for param in group["params"]:
                if param.grad is not None:
                    adam.state[param]["step"].sub_(1.0)
        return False

    def _limit(self) -> float:
        """The longest gradient allowed now."""
        if self._weight < 0.1:  # a handful of steps: nothing is usual yet
            return math.inf
        return _MAX_RELATIVE_NORM * math.exp(self._log_norm / self._weight)

    def _remember(self, norm: float) -> None:
        norm = min(max(norm, 1e-30), self._limit())
        self._log_norm = _DECAY_PER_STEP * self._log_norm + (1 - _DECAY_PER_STEP) * math.log(norm)
        self._weight = _DECAY_PER_STEP * self._weight + (1 - _DECAY_PER_STEP)


class _Glance(NamedTuple):
    """What tells whether a parameter was moved: its steps so far, and entries that each changes."""

    step: Tensor
    squares: Tensor

    @classmethod
    def at(cls, param: Tensor, moments: Mapping[str, Any] | None) -> _Glance:
        """The first entries; all where none of them has a gradient, or to ask would be to wait."""
        grad: Any = param.grad
        some = param.device.type == "cpu" and bool(grad.flatten()[:_NUM_GLANCED_ENTRIES].any())
        count = min(_NUM_GLANCED_ENTRIES, param.numel()) if some else param.numel()
        if not moments:
            return cls(torch.zeros(()), grad.new_zeros(count))
        squares: Tensor = moments["exp_avg_sq"].flatten()[:count].clone()
        return cls(moments["step"].clone(), squares)


def _length(gradients: list[Any]) -> float:
    """As torch has it before it clips them."""
    norms = [norm.to(gradients[0].device) for norm in torch._foreach_norm(gradients)]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _can_fuse(params: list[Tensor]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and not p.is_complex() for p in params)


def _copy(moments: Mapping[str, Any], param: Tensor | None = None) -> dict[str, Any]:
    """A copy of moments, where and as the parameter is: a file has them on its own device."""

    def one(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if param is None:
            return value.clone()
        if name == "step":  # a number, which fused optimisers want beside the parameter
            return value.to(param.device if _can_fuse([param]) else "cpu", copy=True)
        return value.to(param.device, param.dtype, copy=True)

    return {name: one(name, value) for name, value in moments.items()}


def _check_fits(name: str, moments: Mapping[str, Any], param: Tensor) -> None:
    found = tuple(moments["exp_avg"].shape)
    if found != tuple(param.shape):
        raise StateError(
            f"parameter {name!r} has shape {tuple(param.shape)}, and had shape {found} in the run "
            "to resume: give fit the model and the guide of that run."
        )
