"""Guides that a training has spoilt: parameters that are NaN, or draws that are not finite."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pyro_implicit.exceptions import NonFiniteError

__all__ = ["refuse_diverged", "refuse_spoilt_draws"]

_ADVICE_ON_DIVERGENCE = (
    "its training has diverged, and nothing can be told by it. Make a new guide and train it with "
    "a lower learning rate, or by fit(model, guide, ...), which goes back to good parameters."
)


def refuse_diverged(guide: Any) -> None:
    """
    Refuses a guide with a parameter that is NaN; one may be infinite by design, as a mask is.

    :param guide: a guide, a list of them, or anything else, which passes.
    :raises NonFiniteError: naming the parameter.
    """
    members = guide if isinstance(guide, list) else getattr(guide, "guides", ())
    for one in [guide, *(members if isinstance(members, list) else ())]:
        if not isinstance(one, nn.Module):
            continue
        for name, parameter in one.named_parameters():
            if not is_lazy(parameter) and bool(parameter.isnan().any()):
                raise NonFiniteError(
                    f"parameter {name!r} of the guide ({type(one).__name__}) is NaN: "
                    f"{_ADVICE_ON_DIVERGENCE}"
                )


def refuse_spoilt_draws(draws: Tensor, guide: Any) -> None:
    """
    Refuses unconstrained draws that are not finite.

    :param torch.Tensor draws: of any shape.
    :param guide: what drew them.
    :raises NonFiniteError: if one of them is not finite.
    """
    bad = int((~draws.isfinite()).sum())
    if bad:
        refuse_diverged(guide)
        raise NonFiniteError(
            f"{bad} of {draws.numel()} numbers that {type(guide).__name__} drew are not finite: "
            f"{_ADVICE_ON_DIVERGENCE}"
        )
