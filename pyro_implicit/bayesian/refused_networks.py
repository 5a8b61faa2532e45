"""Networks that cannot have their parameters drawn, and what to wrap in their place."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from pyro_implicit.exceptions import ArgumentError

__all__ = ["refuse_unusable", "refuse_unusable_latents"]

_PARALLEL_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def refuse_unusable(module: nn.Module) -> None:
    """
    Refuses networks that hold on to their own parameters, whatever is drawn in their place.

    :param module: a network that is to be wrapped.
    :raises ArgumentError: naming the part, what it is, and what to write instead.
    """
    for name, part in module.named_modules():
        why = _why_not(part)
        if why:
            where = f"the part {name!r} of the network" if name else "the network"
            raise ArgumentError(f"{where} is {why}")


def refuse_unusable_latents(module: nn.Module, names: Iterable[str]) -> None:
    """
    Refuses layers that do more with a weight that is drawn than to compute with it.

    Such are embeddings that write into it, or have gradients of few of its entries, and a spectral
    norm, whose vectors are those of another draw.

    :param module: the network.
    :param names: of the parameters that are latent.
    :raises ArgumentError: naming the part, and what to write instead.
    """
    for name in names:
        owner = name.rpartition(".")[0]
        part = module.get_submodule(owner)
        _refuse_spectral_norm(part, name)
        if not isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        where = f"the part {owner!r} of the network" if owner else "the network"
        if part.max_norm is not None:
            raise ArgumentError(
                f"{where} is an embedding with max_norm, which writes into its weights at each "
                "call, and so into draws. Leave max_norm away: the prior bounds them."
            )
        if part.sparse:
            raise ArgumentError(
                f"{where} is an embedding with sparse=True, whose gradients fit no guide. Leave "
                "that away."
            )


def _refuse_spectral_norm(part: nn.Module, name: str) -> None:
    if not isinstance(part, parametrize.ParametrizationList):
        return
    if any(isinstance(one, parametrizations._SpectralNorm) for one in part):
        raise ArgumentError(
            f"the parameter {name!r} is latent and under torch's spectral_norm, which keeps the "
            "singular vectors of the weight that it met last: of another draw. Register a "
            "parametrization that keeps nothing, "
            "torch.nn.utils.parametrize.register_parametrization(layer, 'weight', part), whose "
            "forward(w) returns w / torch.linalg.matrix_norm(w, 2)."
        )


def _why_not(part: nn.Module) -> str:
    if isinstance(part, torch.jit.ScriptModule):
        return "a ScriptModule, whose parameters stay its own. Wrap it before torch.jit sees it."
    if hasattr(part, "_orig_mod"):  # to ask for its class would import the compiler
        return "compiled, and keeps its parameters. Wrap what was compiled: net._orig_mod."
    if isinstance(part, _PARALLEL_WRAPPERS):
        return (
            f"a {type(part).__name__}, which copies its parameters. Wrap its network, net.module; "
            "LightningVI trains on several devices."
        )
    if _is_derived(part):
        return (
            "under the old torch.nn.utils.weight_norm or spectral_norm, which keep a weight that "
            "was computed before. Use torch.nn.utils.parametrizations.weight_norm; in place of a "
            "spectral norm register a parametrization (torch.nn.utils.parametrize) whose "
            "forward(w) returns w / torch.linalg.matrix_norm(w, 2)."
        )
    return ""


def _is_derived(part: nn.Module) -> bool:
    """Whether a weight is computed by a hook from others, and set before each call."""
    parameters = part._parameters
    return any(
        f"{name}_{end}" in parameters and name not in parameters
        for name in ("weight", "bias")
        for end in ("g", "orig")
    )
