"""One call of an objective, and what a recording of it is for."""

from __future__ import annotations

from typing import Any

import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn
from torch.utils import _pytree

from pyro_implicit.handlers.looks.kept_place import PLAIN_TYPES

__all__ = ["StepCall"]

#: of arguments that are no tensors: a graph holds for their values alone
_VALUE_TYPES = (*PLAIN_TYPES, torch.Size, torch.dtype, torch.device)


class StepCall:
    """
    Model, guide and arguments of a step, and the tensors among these.

    :param model: a Pyro model.
    :param guide: its guide.
    :param tuple args: positional arguments of both.
    :param dict kwargs: keyword arguments of both.
    """

    def __init__(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self.leaves, self._structure = _pytree.tree_flatten((args, kwargs))
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def kind(self, objective: Any) -> tuple[Any, ...]:
        """
        What a graph is valid for.

        :param objective: what is minimised.
        :returns: shapes, strides, dtypes, devices and attributes of tensors, and other arguments by
            value; their structure, and which are the same tensor; layers in evaluation mode;
            settings; the programs.
        """
        kinds = tuple(
            _kind(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in self.leaves
        )
        modes = tuple(
            name
            for program in (self.model, self.guide)
            if isinstance(program, nn.Module)
            for name, part in program.named_modules()  # more of them once a guide is built
            if not part.training
        )
        precision = torch.get_default_dtype(), _autocast()
        settings = repr(objective), is_validation_enabled(), precision
        programs = _same(self.model), _same(self.guide)
        numbers = [id(one) for one in self.tensors]
        structure = str(self._structure), tuple(map(numbers.index, numbers))
        return kinds, structure, modes, settings, programs

    def filled(self, tensors: tuple[Tensor, ...]) -> Any:
        """
        The arguments, with other tensors in the place of theirs.

        :param tensors: as many as they have.
        :returns: positional and keyword arguments.
        """
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return _pytree.tree_unflatten(leaves, self._structure)

    def unfit(self) -> str:
        """
        Why its arguments cannot be those of a graph.

        :returns: the reason, or an empty text.
        """
        unseen = [leaf for leaf in self.leaves if not isinstance(leaf, (Tensor, *_VALUE_TYPES))]
        if unseen:
            return f"an argument is a {type(unseen[0]).__name__}: give tensors or numbers"
        if any(
            isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in self.leaves
        ):
            return "an argument is sparse"
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in self.leaves):
            return "an argument asks for its gradient"
        return ""


def _autocast() -> tuple[Any, ...]:
    """What operations are cast to, of each kind of device that casts them."""
    kinds = ("cpu", "cuda")
    return tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
    )


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """What a graph takes for granted of an argument."""
    dense = tensor.layout is torch.strided
    lies = tensor.stride() if dense else tensor.layout
    own = tuple(
        (name, repr(one)) for name, one in vars(tensor).items() if isinstance(one, PLAIN_TYPES)
    )
    return tuple(tensor.shape), lies, tensor.dtype, tensor.device, tensor.requires_grad, own


def _same(program: Any) -> tuple[int, ...]:
    """What tells a program from others; a bound method is a new object at each look."""
    own = getattr(program, "__self__", None)
    return (id(program),) if own is None else (id(own), id(program.__func__))
