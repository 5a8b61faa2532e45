"""What rounding does to a computation, by moving each result in its last digits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

__all__ = ["PerturbedResults", "perturbed"]

_PERTURBATION_IN_EPS = 4.0
#: Functions whose results are entries of what they are given, or their negatives, or whole: nothing
#: rounds.
_NAMES_OF_EXACT = frozenset(
    """
    abs amax amin cat ceil clamp clip clone contiguous cummax cummin fix flip floor floor_divide
    gather heaviside
    getitem index_select kthvalue masked_fill max maximum median min minimum mode nanmedian neg relu
    repeat repeat_interleave roll round sgn sign sort stack take take_along_dim tile topk tril triu
    trunc where
    """.split()
)


def perturbed(value: Tensor, seed: int) -> Tensor:
    """
    Moves numbers in their last digits, each by itself; the global random numbers stay.

    :param torch.Tensor value: of any shape; what has no point in it stays as it is.
    :param int seed: of the moves.
    :returns: the same shape.
    """
    if not value.is_floating_point():
        return value
    by = _PERTURBATION_IN_EPS * torch.finfo(value.dtype).eps
    generator = torch.Generator(value.device).manual_seed(seed)
    like: Any = {"generator": generator, "dtype": value.dtype, "device": value.device}
    moves: Tensor = 2.0 * torch.rand(value.shape, **like) - 1.0
    return value * (1.0 + by * moves)


class PerturbedResults(TorchFunctionMode):
    """
    Moves whatever is computed from tensors that want a gradient, at each function of torch.

    Where large numbers cancel, the end moves by far more than a last digit, as it does when sums
    are taken in another order. Medians, largest entries and other choices stay entries of what they
    are of, so that comparisons with them do. What follows from other tensors (data, their codes and
    labels) stays as it is, as do views and what is written in place. Within ``torch.func`` nothing
    is moved.

    Example::

        from pyro_implicit.ops.perturbed_results import PerturbedResults

        x = torch.ones(3, requires_grad=True)
        with PerturbedResults(seed=0):
            (x + 1e6 - 1e6).sum()  # 3, give or take one

    :param int seed: of the moves; global random numbers are those of a run without it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._next = seed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "").strip("_") in _NAMES_OF_EXACT:
            return found
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return found
        given = {id(one) for one in args} if isinstance(args, tuple) else set()

        def moved(leaf: Any) -> Any:
            is_result = isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf
            is_new = is_result and not leaf._is_view() and id(leaf) not in given
            if not is_new:
                return leaf
            self._next += 1
            return perturbed(leaf, self._next)

        return _pytree.tree_map(moved, found) if not isinstance(found, Tensor) else moved(found)
