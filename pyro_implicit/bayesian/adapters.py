r"""
Low-rank adapters: a frozen network, and few parameters that change what its layers do.

References

- `LoRA: Low-Rank Adaptation of Large Language Models`, E. Hu and others, ICLR 2022. Section 4.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_flag, check_instance, check_number, check_text
from pyro_implicit.bayesian.private_copy import deep_copy
from pyro_implicit.exceptions import ArgumentError, LayerError

__all__ = ["AdaptedLinear", "with_adapters"]

#: layers that read the weights of the linear layers within them directly, without calling these
_LAYERS_READING_WEIGHTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


class AdaptedLinear(nn.Module):
    r"""
    A frozen linear layer and its adapter: :math:`W x + b + \tfrac{\alpha}{r} U D x`.

    :param torch.nn.Linear base: the layer; it is frozen.
    :param int rank: ``r``, rows of ``D`` (``down``) and columns of ``U`` (``up``).
    :param float alpha: strength of the adapter.
    :param bool train_down: whether ``down`` is a parameter; else it stays as it was drawn.
    :raises ArgumentError: for a rank above the layer's sizes.
    """

    def __init__(
        self, base: nn.Linear, rank: int = 4, alpha: float = 1.0, *, train_down: bool = True
    ) -> None:
        super().__init__()
        self.base = check_instance("base", base, nn.Linear, "a layer nn.Linear")
        most = min(base.in_features, base.out_features)
        rank = check_count("rank", rank, 1, most, " (of the layer)")
        self.strength = check_number("alpha", alpha, above=0) / rank
        for parameter in self.base.parameters():
            parameter.requires_grad_(False)
        like = base.weight
        down = torch.randn(rank, base.in_features).to(like) * base.in_features**-0.5
        self.down = nn.Parameter(down, requires_grad=check_flag("train_down", train_down))
        self.up = nn.Parameter(like.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """
        Applies the layer and its adapter.

        :param torch.Tensor x: shape ``(..., in_features)``.
        :returns: shape ``(..., out_features)``.
        """
        inner = nn.functional.linear(x, self.down)
        adapted: Tensor = self.base(x) + self.strength * nn.functional.linear(inner, self.up)
        return adapted


def with_adapters(
    module: nn.Module,
    rank: int = 4,
    *,
    layers: str = ".*",
    alpha: float = 1.0,
    train_down: bool = True,
) -> nn.Module:
    r"""
    Copies a network, frozen, with a low-rank adapter beside each of its linear layers.

    The adapters (``<layer>.up`` and ``<layer>.down``) are its only trainable parameters, and so the
    only latents of ``BayesianModule(with_adapters(network), prior=...)``: a posterior over
    thousands of numbers for a network of millions. It begins at the trained network (``up`` is 0 at
    first, so start the guide there: ``init_loc_fn=net.init_to_module``). With ``train_down=False``
    only ``up`` is one; the function is then linear in the latents of one layer, and the posterior
    has none of the signs and rotations that leave ``up @ down`` the same. A layer that is used in
    several places has one adapter, in all of them.

    Source: `LoRA: Low-Rank Adaptation of Large Language Models`, Hu and others, ICLR 2022.

    Example::

        net = BayesianModule(with_adapters(network, rank=2), prior=dist.Normal(0.0, 0.1))

    :param torch.nn.Module module: a network, itself untouched.
    :param int rank: of each adapter; smaller where a layer is.
    :param str layers: a regular expression for the whole names of the layers to adapt; any of its
        names will do for a layer that has several.
    :param float alpha: strength of the adapters.
    :param bool train_down: whether ``down`` is a parameter as well as ``up``.
    :returns: the copy.
    :raises ArgumentError: if no linear layer matches.
    :raises LayerError: for layers within attention, which reads their weights directly and would
        pass over an adapter.
    """
    check_instance("module", module, nn.Module, "a network, torch.nn.Module")
    rank = check_count("rank", rank)
    try:
        pattern = re.compile(check_text("layers", layers, "a regular expression"))
    except re.error as error:
        raise ArgumentError(f"layers={layers!r} is no regular expression: {error}.") from error
    adapted = deep_copy(module).requires_grad_(False)
    uses = _uses_of_linear_layers(adapted)
    chosen = {id(use.layer) for use in uses if pattern.fullmatch(use.name)}
    if not chosen:
        raise ArgumentError(
            f"layers={layers!r} matches no nn.Linear of the network; expected a regular expression "
            "for the whole name of a linear layer within it."
        )
    made: dict[int, nn.Module] = {}
    for use in uses:
        layer = use.layer
        if id(layer) not in chosen:
            continue
        if isinstance(use.parent, _LAYERS_READING_WEIGHTS):
            raise LayerError(
                f"layer {use.name!r} is within a {type(use.parent).__name__}, which reads its "
                "weights directly: an adapter would do nothing there. Leave it out by layers=..., "
                "a regular expression for the names to adapt."
            )
        if id(layer) not in made:
            size = min(rank, layer.in_features, layer.out_features)
            one = AdaptedLinear(layer, size, alpha, train_down=train_down)
            made[id(layer)] = one.train(layer.training)
        setattr(use.parent, use.child, made[id(layer)])
    return adapted


@dataclass(frozen=True)
class _Use:
    """A place where a linear layer is registered; one that is shared has several."""

    name: str
    parent: nn.Module
    child: str
    layer: nn.Linear


def _uses_of_linear_layers(module: nn.Module) -> list[_Use]:
    uses = []
    for path, parent in module.named_modules(remove_duplicate=False):
        for child, layer in parent._modules.items():  # named_children() leaves repetitions out
            if isinstance(layer, nn.Linear):
                uses.append(_Use(f"{path}.{child}" if path else child, parent, child, layer))
    return uses
