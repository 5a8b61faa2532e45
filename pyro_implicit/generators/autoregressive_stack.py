"""What generators of autoregressive blocks share: the blocks, the maps between them, the map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.generators.autoregressive_block import (
    block_inverse,
    first_tensors,
    map_inverse,
    masks_of,
)
from pyro_implicit.generators.autoregressive_gradient import (
    Gradients,
    Passed,
    WrittenOut,
    is_plain_step,
    is_step,
)
from pyro_implicit.generators.autoregressive_map import Layer, log_det_of, mapped
from pyro_implicit.generators.autoregressive_score import carried_score
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.linear_maps import INVERTIBLE_KINDS, default_kind, linear_maps
from pyro_implicit.generators.packed import PackedModule
from pyro_implicit.ops.full_precision import in_full_precision
from pyro_implicit.ops.inverse import Inversion, check_reached, first_order, result_dtype
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import upcast

__all__ = ["AutoregressiveStack", "KnownDeterminant", "inverted", "width_of"]

_MASKED_LAYERS = ("in", "hidden", "out")
#: of the default width, in hidden units
_UNITS_PER_OUTPUT, _MIN_WIDTH, _MAX_WIDTH = 4, 40, 128


def width_of(output_dim: int, hidden_dim: int | None) -> int:
    """
    Tell the width of the networks of a generator.

    :param int output_dim: its number of outputs.
    :param int hidden_dim: the width that was asked for, None for the default.
    :returns: hidden units of each layer.
    :raises ArgumentError: for values that are no counts.
    """
    if hidden_dim is not None:
        return check_count("hidden_dim", hidden_dim)
    return min(max(_MIN_WIDTH, _UNITS_PER_OUTPUT * output_dim), _MAX_WIDTH)


class AutoregressiveStack(PackedModule, Generator):
    """
    Autoregressive blocks and linear maps in turns, and a shift, with one parameter for all.

    The order of the entries is reversed between two blocks.

    :param int noise_dim: number of inputs.
    :param int output_dim: outputs and noises ``m``.
    :param int hidden_dim: width of the hidden layers of each block.
    :param int num_blocks: number of blocks.
    :param int num_steps: steps of each increasing function.
    :param str mixing: the linear maps.
    :param float init_scale: standard deviation of each output at initialisation, roughly.
    :param int context_dim: numbers beside the entries that every entry may depend on; None for
        none.
    :raises ArgumentError: for values outside of these.
    """

    full_rank = True
    mask_in: Tensor
    mask_hidden: Tensor
    mask_out: Tensor

    def __init__(
        self,
        noise_dim: int,
        output_dim: int,
        hidden_dim: int,
        num_blocks: int,
        num_steps: int,
        mixing: str,
        init_scale: float,
        context_dim: int | None = None,
    ) -> None:
        super().__init__((noise_dim,), output_dim)
        init_scale = check_number("init_scale", init_scale, above=0)
        self.hidden_dim, self.num_blocks = hidden_dim, check_count("num_blocks", num_blocks)
        self.num_steps = check_count("num_steps", num_steps, 0)
        self.mixing = check_choice("mixing", mixing, ("auto", *INVERTIBLE_KINDS))
        kind = default_kind(output_dim, invertible=True) if mixing == "auto" else mixing
        masks = masks_of(output_dim, hidden_dim, context_dim is not None)
        for name, mask in masks.items():
            self.register_buffer(f"mask_{name}", mask, persistent=False)
        blocks = [first_tensors(masks, num_steps, context_dim) for _ in range(num_blocks)]
        maps = linear_maps(kind, output_dim, num_blocks, init_scale)
        mixes = [dict(mix.named_parameters()) for mix in maps]
        tensors = {"shift": torch.zeros(output_dim)}
        for begin, parts in (("blocks", blocks), ("maps", mixes)):
            for name in parts[0]:
                tensors[f"{begin}.*.{name}"] = torch.stack([part[name] for part in parts])
        self._pack(tensors)

    # ---- the tensors

    @property
    def shift(self) -> Tensor:
        """What is added to all draws: a view of :attr:`weights`, shape ``(m,)``."""
        return self._unpacked(self.weights)["shift"]

    @property
    def blocks(self) -> list[SimpleNamespace]:
        """The tensors of each block by name: views of :attr:`weights`, and the masks."""
        masks = {f"mask_{place}": getattr(self, f"mask_{place}") for place in _MASKED_LAYERS}
        return [SimpleNamespace(**tensors, **masks) for tensors in self._numbered("blocks")]

    @property
    def maps(self) -> list[SimpleNamespace]:
        """The tensors of each linear map by name: views of :attr:`weights`."""
        return [SimpleNamespace(**tensors) for tensors in self._numbered("maps")]

    def _numbered(self, begin: str) -> list[dict[str, Tensor]]:
        found: list[dict[str, Tensor]] = [{} for _ in range(self.num_blocks)]
        for name, tensor in self._unpacked(self.weights).items():
            if name.startswith(f"{begin}.*."):
                for tensors, one in zip(found, tensor, strict=True):
                    tensors[name.rpartition(".")[2]] = one
        return found

    def _layers(
        self, weights: Tensor, context: Tensor | None = None, batch: Sequence[int] = ()
    ) -> tuple[list[Layer], Tensor, Tensor]:
        """
        The tensors of each layer, the shift, and the log-determinant of all linear maps.

        :param torch.Tensor weights: all in one, as :attr:`weights`.
        :param torch.Tensor context: of each row, shape ``(..., k)``; broadcasts with ``batch``.
        :param batch: shape of the noises without their entries.
        """
        parts = self._unpacked(weights)
        log_diagonal = parts["maps.*.log_diagonal"]
        stacked: list[Tensor | None] = [
            parts["blocks.*.weight_in"] * self.mask_in,
            parts["blocks.*.bias_in"],
            parts["blocks.*.weight_hidden"] * self.mask_hidden,
            parts["blocks.*.bias_hidden"],
            (parts["blocks.*.weight_out"] * self.mask_out).flatten(1, 2),
            parts["blocks.*.bias_out"].flatten(1),
            log_diagonal.exp(),
            None if "maps.*.upper" not in parts else parts["maps.*.upper"].triu(1),
            None if "maps.*.lower" not in parts else parts["maps.*.lower"].tril(-1),
        ]
        if context is not None:
            hidden, direct = parts["blocks.*.weight_context"], parts["blocks.*.weight_direct"]
            stacked += [
                _of_rows(context, hidden, batch),
                _of_rows(context, direct.flatten(1, 2), batch),
            ]
        absent = (None,) * self.num_blocks
        columns = [absent if one is None else one.unbind(0) for one in stacked]
        layers = [Layer(*row) for row in zip(*columns, strict=True)]
        return layers, parts["shift"], upcast(log_diagonal).sum().to(weights.dtype)

    def _flat(self, gradients: Sequence[Gradients], of_shift: Tensor) -> Tensor:
        """
        Gradients of the layers' tensors as that of :attr:`weights`.

        :param gradients: of each layer, from the first.
        :param torch.Tensor of_shift: shape ``(m,)``.
        """
        masks = {f"weight_{place}": getattr(self, f"mask_{place}") for place in _MASKED_LAYERS}
        cuts = {"upper": lambda tensor: tensor.triu(1), "lower": lambda tensor: tensor.tril(-1)}
        found = []
        for name, shape in self._shapes.items():
            begin, _, own = name.rpartition(".")
            if not begin:
                found.append(of_shift)
                continue
            for one in gradients:
                tensor = getattr(one, own)
                if own in masks:
                    tensor = tensor.view(shape[1:]) * masks[own]
                elif own in cuts:
                    tensor = cuts[own](tensor)
                found.append(tensor if tensor.dim() == 1 else tensor.reshape(-1))
        return torch.cat(found)

    # ---- the map

    def _by_operations(
        self,
        weights: Tensor,
        z: Tensor,
        context: Tensor | None = None,
        batch: Sequence[int] = (),
        passed: Passed | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draws ``(n, m)`` and log-determinants ``(n,)``, by operations that autograd records."""
        layers, shift, log_det = self._layers(weights, context, batch)
        x, slopes, kept = mapped(layers, z)
        if passed is not None:
            passed.layers, passed.slopes, passed.kept = layers, slopes, kept
        bent = torch.cat([one.shape.bent for one in kept], -1)
        return x + shift, log_det_of(torch.cat(slopes, -1), bent) + log_det

    def _draw(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Draws of noises, both ``(..., m)``."""
        return self._draw_with_log_det(z, context)[0]

    def _draw_with_log_det(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draws, and the log-determinants ``(...)``, in one pass."""
        return self._pass(z, context)[:2]

    def _pass(
        self, z: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Passed | None]:
        """The same, and what the pass left behind where a step is taken that may ask for it."""
        batch, m = z.shape[:-1], self.output_dim
        with in_full_precision(z):
            wide = z.to(torch.promote_types(z.dtype, torch.float32))
            weights, rows = self.weights.to(wide.dtype), wide.reshape(batch.numel(), m)
            passed = Passed() if is_step() else None
            if passed is not None and context is None and is_plain_step():
                x, log_det = WrittenOut.apply(self, passed, weights, rows)
            else:
                x, log_det = self._by_operations(weights, rows, context, batch, passed)
            return x.view(*batch, m).to(z.dtype), log_det.view(batch).to(z.dtype), passed

    @torch.no_grad()
    def _undo(self, w: Tensor, context: Tensor | None = None) -> tuple[Tensor, int]:
        """The noises of draws ``(..., m)``, and the largest number of rounds of a block."""
        x, most = w.reshape(w.shape[:-1].numel(), self.output_dim), 0
        layers, shift, _ = self._layers(self.weights.to(w.dtype), context, w.shape[:-1])
        x = x - shift
        for number in reversed(range(self.num_blocks)):
            x, rounds = block_inverse(layers[number], map_inverse(layers[number], x))
            x, most = x.flip(-1) if number else x, max(most, rounds)
        return x.reshape(w.shape), most

    def _config(self) -> dict[str, Any]:
        """What :meth:`Generator.config` of all of them tells."""
        return {
            "type": type(self).__name__,
            "output_dim": self.output_dim,
            "hidden_dim": self.hidden_dim,
            "num_blocks": self.num_blocks,
            "num_steps": self.num_steps,
            "mixing": self.mixing,
        }


def _of_rows(context: Tensor, weights: Tensor, batch: Sequence[int]) -> Tensor:
    """
    What each layer makes of the contexts, once for all draws of a row.

    :param torch.Tensor context: shape ``(..., k)``.
    :param torch.Tensor weights: shape ``(layers, units, k)``.
    :param batch: shape of the noises without their entries.
    :returns: shape ``(layers, n, units)``.
    """
    count, units, k = weights.shape
    made = context.reshape(-1, k) @ weights.mT
    lead = (1,) * (len(batch) - context.dim() + 1)
    made = made.reshape(count, *lead, *context.shape[:-1], units)
    return made.expand(count, *batch, units).reshape(count, torch.Size(batch).numel(), units)


def inverted(
    generator: Generator, x: Tensor, undo: Callable[[Tensor], tuple[Tensor, int]]
) -> Inversion:
    """
    Find the noises that lead to values, in float64, with a first derivative.

    :param Generator generator: a bijection.
    :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
    :param undo: from wide outputs to noises of that shape and its rounds.
    :returns: the noise, its rounds and the largest error of what it leads to.
    :raises NonFiniteError: if the noise that was found does not lead there.
    """
    goal = upcast(x)
    with torch.no_grad():
        z, most = undo(goal.detach())
    rest = generator(z) - goal
    worst = float(rest.detach().abs().max()) if rest.numel() else 0.0
    check_reached(rest, goal)
    if rest.requires_grad:  # the implicit function theorem, as one step of Newton's method
        with torch.no_grad():
            jacobian = generator.jacobian(z)
        z = first_order(z - torch.linalg.solve(jacobian, rest[..., None])[..., 0])
    return Inversion(z.to(result_dtype(x)), most, worst)


class KnownDeterminant(Linearisation):
    """
    A value with its determinant; products only once they are asked for.

    :param products: makes the linearisation that has them.
    :param torch.Tensor value: the draws, shape ``(..., m)``.
    :param torch.Tensor log_abs_det: shape ``(...)``.
    :param Passed passed: what the pass left behind, None where that is not known.
    """

    def __init__(
        self,
        products: Callable[[], Linearisation],
        value: Tensor,
        log_abs_det: Tensor,
        passed: Passed | None = None,
    ) -> None:
        super().__init__(value, value.shape[-1])
        self._make, self.log_abs_det, self._passed = products, log_abs_det, passed
        self._tracks_gradients = torch.is_grad_enabled()

    def score(self, of_noise: Tensor) -> Tensor | None:
        """See :meth:`Linearisation.score`."""
        if self._passed is None:
            return None
        passed, wide = self._passed, self._passed.kept[0].x.dtype
        rows = of_noise.to(wide).reshape(-1, self.output_dim)
        found = carried_score(passed.layers, passed.slopes, passed.kept, rows)
        return found.view(of_noise.shape).to(self.dtype)

    def let_go(self) -> None:
        """The draws stay: the path of the entropy's gradient leads through them."""

    @cached_property
    def _products(self) -> Linearisation:
        with torch.set_grad_enabled(self._tracks_gradients):  # whoever asks first may need none
            return self._make()

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        return self._products.jvp(v)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        return self._products.vjp(u)
