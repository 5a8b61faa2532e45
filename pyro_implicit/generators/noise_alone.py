"""Refuses generators whose draws depend on more than their own noise."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.jacobian_route import kind_of, two_noises
from pyro_implicit.generators.modes import evaluated
from pyro_implicit.generators.one_derivative import check_one_derivative

__all__ = ["check_function_of_noise", "refuse_batch_statistics"]

_MAX_NUMBERS_OF_TWO_DRAWS = 2**20  # with more, one of the two is held
#: generators that were tried, with their modes then (whether they were in training)
_TRIED_MODES: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()


def refuse_batch_statistics(generator: Generator) -> None:
    """
    Refuses generators that normalise by the draws that happen to be made together.

    :raises LayerError: if a layer would normalise by the draws that happen to be made together, or
        by itself while training and by running statistics after that; names it.
    """
    for name, layer in generator.named_modules():
        if isinstance(layer, _InstanceNorm) and layer.training and layer.track_running_stats:
            raise LayerError(
                f"layer '{name}' ({type(layer).__name__}) of the generator normalises each draw by "
                "itself in training, and by running statistics afterwards: what is drawn then has "
                "another distribution than was fitted. Write track_running_stats=False, or call "
                ".eval() on the guide, to use the running statistics throughout."
            )
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise LayerError(
                f"layer '{name}' ({type(layer).__name__}) of the generator normalises by the draws "
                "that are made together, so that no draw has a distribution of its own. "
                "Three ways out: (1) "
                "build the generator without it (its noise is normalised already); (2) use "
                "nn.LayerNorm or nn.GroupNorm, which look at one draw; (3) call .eval() on the "
                "guide, to use running statistics if the layer has any."
            )


def check_function_of_noise(generator: Generator, like: Tensor) -> None:
    """
    Refuses generators whose draws are not a function of their own noise.

    For estimates that
    evaluate one at the noise of a draw again, or differentiate it there.

    Layers are looked at in each call, and each generator is tried once in each mode: at the same
    noise twice, and at one of two noises alone. Draws no random number, and leaves buffers as they
    are.

    :param Generator generator: the generator.
    :param torch.Tensor like: a noise, for dtype and device.
    :raises LayerError: if it has a random layer (named, if it is one of torch's), if one draw
        depends on the others, if calls change it so that draws in evaluation mode are others, or if
        a part of it is hidden from its derivative.
    """
    for name, layer in generator.named_modules():
        if layer.training and _is_random(layer):
            raise LayerError(_random(f"layer '{name}' ({type(layer).__name__})"))
    origin = generator.origin
    if torch.compiler.is_compiling() or generator.training in _TRIED_MODES.get(origin, ()):
        return
    _try(origin, like)
    _TRIED_MODES.setdefault(origin, set()).add(generator.training)


def _is_random(layer: nn.Module) -> bool:
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU) and layer.lower < layer.upper


def _random(what: str) -> str:
    return (
        f"{what} of the generator is random: at the noise of a draw it gives another draw, so that "
        "this objective would take the derivative of one and the value of the other. Three ways "
        "out: (1) build the generator without it (its noise is the randomness that a guide needs); "
        "(2) call .eval() on the guide; (3) use an objective that needs draws alone, such as "
        "KernelDensityRatioELBO, for which it is one more source of noise."
    )


def _try(origin: Generator, like: Tensor) -> None:
    kept = {name: buffer.clone() for name, buffer in origin.named_buffers()}
    try:
        if _gives_own_draws(origin, two_noises(origin, like), kept):
            check_one_derivative(origin, like)
    finally:
        with torch.no_grad():
            for name, buffer in origin.named_buffers():
                if name in kept and not _is_kept(buffer, kept[name]):
                    buffer.copy_(kept[name])


@torch.no_grad()
def _gives_own_draws(origin: Generator, pair: Tensor, kept: Mapping[str, Tensor]) -> bool:
    """
    Whether it gives numbers at all.

    :raises LayerError: unless a draw is a function of its noise.
    """
    first = origin(pair)
    if first.numel() > _MAX_NUMBERS_OF_TWO_DRAWS:
        first = first[:1].clone()  # the memory of one draw in place of two
    if not bool(first.isfinite().all()):
        return False  # a lost generator: the objective names the site
    kind = kind_of(origin)
    changed = [name for name, now in origin.named_buffers() if not _is_kept(now, kept.get(name))]
    same_again = _are_close(first, origin(pair)[: len(first)])
    if changed and origin.training:
        with evaluated(origin):
            later = origin(pair)[: len(first)]
        if not (same_again and _are_close(first, later)):
            raise LayerError(_changing(kind, changed))
    if not same_again:
        raise LayerError(_random(f"something in the {kind}"))
    if not _are_close(first[:1], origin(pair[:1])):
        raise LayerError(
            f"the generator {kind} gives another draw for a noise if there are others beside it: "
            "its draws depend on each other, and none has a distribution or a Jacobian of its own. "
            "Build it "
            "of layers that treat each row by itself."
        )
    return True


def _is_kept(now: Tensor, before: Tensor | None) -> bool:
    return before is not None and now.shape == before.shape and torch.equal(now, before)


def _changing(kind: str, changed: list[str]) -> str:
    return (
        f"each call of the generator {kind} changes its buffers {', '.join(changed[:4])}, and the "
        "next, or one in evaluation mode, gives other draws for the same noise: what is drawn "
        "after training has another distribution than was fitted. Build it without such layers "
        "(spectral normalisation, running statistics), or call .eval() on the guide, to train it "
        "as it is drawn from."
    )


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Up to rounding; of millions of entries nothing is held beside them if they are equal."""
    if torch.equal(one, other):
        return True
    low, high = one.aminmax()
    tolerance = torch.finfo(one.dtype).eps ** 0.5 * (1 + max(-low.item(), high.item()))
    return torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True)
