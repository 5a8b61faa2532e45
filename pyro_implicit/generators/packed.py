"""Many tensors that are trained as one: an optimiser takes as long for each, however small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["PackedModule", "named_tensors", "with_packed"]


class PackedModule(nn.Module):
    """
    A module with one parameter, :attr:`weights`, in which named tensors lie side by side.

    Pyro's optimisers, and its parameter statements, take some 0.1 ms a step for each parameter,
    which for a small network is more than the network itself takes. A name with a star stands for
    tensors of one shape, one for each number from 0, which are stacked: ``blocks.*.bias``.

    States that have the tensors by their names are loaded, too.
    """

    weights: nn.Parameter
    _shapes: dict[str, torch.Size]

    def _pack(self, tensors: Mapping[str, Tensor]) -> None:
        """
        Makes the parameter.

        :param tensors: by name, those of a name with a star stacked.
        """
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])
        self.weights = nn.Parameter(flat)

    def _unpacked(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a tensor that is laid out as :attr:`weights`, by name, stacked."""
        parts = flat.split_with_sizes(self._sizes)
        shapes = self._shapes.items()
        return {name: part.view(s) for (name, s), part in zip(shapes, parts, strict=True)}

    def named_weights(self) -> dict[str, Tensor]:
        """
        The tensors one by one.

        :returns: views of :attr:`weights` by name.
        """
        return dict(self._each(self._unpacked(self.weights)))

    @staticmethod
    def _each(stacked: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        return [
            (name.replace("*", str(number)), one)
            for name, tensor in stacked.items()
            for number, one in (enumerate(tensor) if "*" in name else [(0, tensor)])
        ]

    def with_packed(self, state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """
        A state in which the tensors may stand by their names, as one that has :attr:`weights`.

        :param state: tensors by name, with others perhaps.
        :param str prefix: begin of the names that are of this module.
        :returns: the same state if it lacks one of the tensors, or has one of another shape.
        """
        names = {name: tensor.shape for name, tensor in self.named_weights().items()}
        found = [one for name in names if isinstance(one := state.get(prefix + name), Tensor)]
        if [one.shape for one in found] != list(names.values()) or f"{prefix}weights" in state:
            return dict(state)
        rest = {k: v for k, v in state.items() if k not in {prefix + name for name in names}}
        return rest | {f"{prefix}weights": torch.cat([one.reshape(-1) for one in found])}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(self.with_packed(state_dict, prefix), prefix, *args)


def with_packed(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """
    A state of a module in which tensors may stand by their names, as it is saved now.

    :param module: any.
    :param state: tensors by name.
    """
    found = dict(state)
    for name, part in module.named_modules():
        if isinstance(part, PackedModule):
            found = part.with_packed(found, f"{name}." if name else "")
    return found


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """
    The trained tensors of a module one by one.

    :param module: any.
    :returns: its parameters by name; in place of one that is packed, views of what is in it.
    """
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        own = dict[str, Tensor](part.named_parameters(recurse=False))
        if isinstance(part, PackedModule):
            del own["weights"]
            own = part.named_weights() | own
        found |= {f"{name}.{key}" if name else key: tensor for key, tensor in own.items()}
    return found
