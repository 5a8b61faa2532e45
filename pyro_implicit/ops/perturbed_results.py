"""What rounding does to a computation, by moving each result in its last digits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

__all__ = ["PerturbedResults", "perturbed"]

_PERTURBATION_IN_EPS = 4.0


def perturbed(value: Tensor) -> Tensor:
    """
    Moves numbers in their last digits, each by itself.

    :param torch.Tensor value: of any shape; what has no point in it stays as it is.
    :returns: the same shape.
    """
    if not value.is_floating_point():
        return value
    by = _PERTURBATION_IN_EPS * torch.finfo(value.dtype).eps
    return value * (1.0 + by * (2.0 * torch.rand_like(value) - 1.0))


class PerturbedResults(TorchFunctionMode):
    """
    Moves whatever is computed from tensors that want a gradient, at each function of torch.

    Where large numbers cancel, the end moves by far more than a last digit, as it does when sums
    are taken in another order. What follows from other tensors (data, their codes and labels) stays
    as it is, as do views and what is written in place. Within ``torch.func`` nothing is moved.

    Example::

        from pyro_implicit.ops.perturbed_results import PerturbedResults

        x = torch.ones(3, requires_grad=True)
        with PerturbedResults():
            (x + 1e6 - 1e6).sum()  # 3, give or take one
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return found
        given = {id(one) for one in args} if isinstance(args, tuple) else set()

        def moved(leaf: Any) -> Any:
            is_result = isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf
            is_new = is_result and not leaf._is_view() and id(leaf) not in given
            return perturbed(leaf) if is_new else leaf

        return _pytree.tree_map(moved, found) if not isinstance(found, Tensor) else moved(found)
