"""Gradients of one loss: all of them and finite, or none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.handlers.wrapped import base_distribution
from pyro_implicit.objectives.particles.particle import Particle, sample_nodes
from pyro_implicit.ops.second_derivatives import second_derivatives

__all__ = ["OwnGradients", "all_finite", "names_of_non_finite"]

_MAX_PARAMETERS_NAMED = 3


class OwnGradients:
    """
    Collects the gradients of several backward passes, and adds them at the end.

    They are kept apart from those that the parameters have already: if anything fails before, each
    parameter has the gradient that it came with::

        with OwnGradients() as gradients:
            for loss in losses:
                gradients.backward(loss)
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[Tensor, Tensor | None]] = {}

    def __enter__(self) -> OwnGradients:
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        # first all assignments that cannot fail, so that an error of the sums loses nothing
        sums = []
        for leaf, before in self._before.values():
            if kind is not None:
                leaf.grad = before
            elif leaf.grad is None:
                leaf.grad = before
            elif before is not None:
                sums.append((leaf, before, leaf.grad))
        if sums:
            with torch.no_grad():
                for leaf, before, grad in sums:
                    leaf.grad = before + grad if before.is_sparse else before.add_(grad)
        self._before.clear()

    def backward(self, loss: Tensor, retain_graph: bool | None = None) -> None:
        """
        Adds the gradients of one loss to those collected so far.

        :param torch.Tensor loss: shape ``()``, with a graph.
        :param bool retain_graph: as in ``Tensor.backward``.
        :raises LayerError: if it needs a second derivative that torch does not have.
        """
        for leaf in _leaves(loss):
            if id(leaf) not in self._before:
                self._before[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
        with second_derivatives():
            loss.backward(retain_graph=retain_graph)

    def check_finite(
        self, loss: float, particles: Sequence[Particle], *programs: Any, second: bool = False
    ) -> None:
        """
        Refuses gradients that are NaN or infinite.

        :param float loss: the loss, for the message.
        :param particles: those of the latest backward pass.
        :param programs: model and guide, asked for the names of parameters.
        :param bool second: whether the loss is made of the model's score, so that its gradients
            take second derivatives of the log-density.
        :raises NonFiniteError: naming parameters, and sites where they are to blame, if a gradient
            is not finite.
        """
        leaves = [leaf for leaf, _ in self._before.values() if leaf.grad is not None]
        if all_finite([leaf.grad for leaf in leaves if leaf.grad is not None]):
            return
        names = names_of_non_finite(leaves, _names(programs))
        if not names:
            return  # finite, with a norm that is not
        sites = list(dict.fromkeys(chain.from_iterable(map(_sites_to_blame, particles))))
        if sites:
            blame = f"So are those of the log-density of site {', '.join(sites)} by itself. "
        elif second:
            blame = (
                "The loss is made of first derivatives of the model's log-density, which are "
                "finite, and its gradients take second ones: torch's are NaN for logaddexp of "
                "numbers far apart (torch.stack(...).logsumexp(0) has them) and for a norm at 0. "
                "An objective without the model's score, such as LinearisedELBO, needs none. "
            )
        else:
            blame = (
                "Those of each log-density by itself are finite: look at what the model or the "
                "generator computes. "
            )
        raise NonFiniteError(
            f"the loss is finite ({loss:.6g}), and gradients are not: those of {names}. {blame}"
            "No parameter was changed and no gradient is kept. Common causes: a square root, norm "
            "or logarithm at 0, also on the side that torch.where leaves out; "
            "torch.autograd.set_detect_anomaly(True) shows the line."
        )


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """
    Whether all gradients are finite, found in one pass that waits for the device once.

    :param gradients: any number of tensors.
    :returns: True if all entries are finite; False if not, or if a norm overflows.
    """
    dense = [g._values() if g.is_sparse else g for g in gradients]
    if not dense:
        return True
    norms = torch._foreach_norm(dense)
    if len(norms) == 1:
        return math.isfinite(norms[0].item())
    return math.isfinite(torch.stack([norm.to(norms[0]) for norm in norms]).sum().item())


def names_of_non_finite(leaves: Iterable[Tensor], names: dict[int, str]) -> str:
    """
    Names the tensors whose gradients are not finite.

    :param leaves: tensors with gradients.
    :param names: names by ``id``.
    :returns: those whose gradient is not finite, for a message; empty if there is none.
    """
    bad = []
    for leaf in leaves:
        grad = leaf.grad
        if grad is not None and not (grad._values() if grad.is_sparse else grad).isfinite().all():
            bad.append(names.get(id(leaf), f"a tensor of shape {tuple(leaf.shape)}"))
    rest = (
        f" and {len(bad) - _MAX_PARAMETERS_NAMED} more" if len(bad) > _MAX_PARAMETERS_NAMED else ""
    )
    return ", ".join(map(repr, bad[:_MAX_PARAMETERS_NAMED])) + rest


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward pass adds gradients to."""
    if loss.grad_fn is None:
        yield loss
        return
    seen, stack = {loss.grad_fn}, [loss.grad_fn]
    while stack:
        node = stack.pop()
        functions = node.next_functions
        if not functions:  # the end of a path: a leaf, or nothing
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                yield leaf
        for function, _ in functions:
            if function is not None and function not in seen:
                seen.add(function)
                stack.append(function)


def _names(programs: Iterable[Any]) -> dict[int, str]:
    found = {id(value): name for name, value in pyro.get_param_store().named_parameters()}
    for program in programs:
        if isinstance(program, nn.Module):
            found.update((id(value), name) for name, value in program.named_parameters())
    return found


def _sites_to_blame(particle: Particle) -> list[str]:
    return [
        f"{name!r} of the {side}"
        for side, trace in (("model", particle.model), ("guide", particle.guide))
        for name, node in sample_nodes(trace).items()
        if "log_prob" in node and not _has_finite_gradients(node)
    ]


@torch.enable_grad()
def _has_finite_gradients(node: Any) -> bool:
    """Whether a log-density has finite gradients in its value and its parameters."""
    fn, base, inputs = node["fn"], base_distribution(node["fn"]), []
    value = node["value"]
    if isinstance(value, Tensor) and value.is_floating_point():
        value = value.detach().clone().requires_grad_()
        inputs.append(value)
    parameters = [vars(base).get(name) for name in getattr(base, "arg_constraints", {})]
    inputs += [p for p in parameters if isinstance(p, Tensor) and p.requires_grad]
    try:
        log_prob = fn.log_prob(value).sum()
        gradients = torch.autograd.grad(log_prob, inputs, allow_unused=True)
    except (RuntimeError, NotImplementedError):  # a graph that is gone, an implicit prior
        return True
    return all_finite([g for g in gradients if g is not None])
