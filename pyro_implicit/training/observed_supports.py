"""Where the data of a step must lie, as the program said when it ran itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import constraints

__all__ = ["ObservedSupports"]

#: those that do not depend on the parameters of a distribution
_FIXED = (
    constraints.boolean,
    constraints.nonnegative,
    constraints.nonnegative_integer,
    constraints.positive,
    constraints.positive_integer,
    constraints.simplex,
    constraints.unit_interval,
)


class ObservedSupports(Messenger):
    """
    Looks on while a model runs, and notes the supports of the arguments that it observes.

    A recorded step does not check what it is given; this does, for each batch once. It may be too
    strict (data under a mask): what it refuses goes to the program, which knows.

    :param tensors: the arguments.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._supports: dict[int, Any] = {}
        self._checked: dict[int, tuple[Tensor, int]] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            return
        for place, tensor in enumerate(self._tensors):
            support = _fixed(msg["fn"]) if msg["value"] is tensor else None
            if support is not None:
                self._supports[place] = support

    def forget_tensors(self) -> None:
        """Lets go of the arguments; only their places are needed from now on."""
        self._tensors = []

    def refuse(self, tensors: Sequence[Tensor]) -> bool:
        """
        Tells whether the program would refuse other arguments.

        :param tensors: the arguments, in the same order.
        :returns: whether one lies outside of its support.
        """
        for place, support in self._supports.items():
            tensor = tensors[place]
            last, version = self._checked.get(place, (None, -1))
            if last is tensor and version == tensor._version:
                continue
            if not bool(support.check(tensor).all()):
                return True
            self._checked[place] = tensor, tensor._version
        return False


def _fixed(fn: Any) -> Any:
    """The support of a distribution, or None where it depends on parameters."""
    try:
        support = fn.support
    except (AttributeError, NotImplementedError):
        return None
    inner = support
    while hasattr(inner, "base_constraint"):
        inner = inner.base_constraint
    bounds = [getattr(inner, name, None) for name in ("lower_bound", "upper_bound")]
    if any(inner is one for one in _FIXED) or all(type(bound) is int for bound in bounds):
        return support
    return None
