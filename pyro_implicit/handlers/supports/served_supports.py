"""Supports: which a guide serves, and as plain values, so that saving pickles nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions import biject_to

from pyro_implicit.exceptions import SiteError, StateError
from pyro_implicit.handlers.masks.hidden_observations import HIDDEN_SUFFIX
from pyro_implicit.handlers.supports.own_support import hidden_vector, own_support
from pyro_implicit.handlers.wrapped import without_events

__all__ = [
    "bounds_of",
    "check_support",
    "circular_part",
    "cut_off",
    "decode_support",
    "encode_support",
    "is_real",
    "keep_inside",
    "map_support",
    "moved_support",
    "no_bijection",
    "plain_support",
    "same_support",
]

#: By constraint: the attributes that hold the arguments of its constructor, in their order.
_ARGUMENTS_OF_CONSTRAINTS: dict[str, tuple[str, ...]] = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "half_open_interval": ("lower_bound", "upper_bound"),
    "independent": ("base_constraint", "reinterpreted_batch_ndims"),
    "interval": ("lower_bound", "upper_bound"),
    "less_than": ("upper_bound",),
}


_ADVICE_ON_COVARIANCE = (
    "Draw correlations and scales instead (another prior than the one found, with the same "
    "support): r = pyro.sample('{name}_corr', dist.LKJCholesky({n}, 1.0)); s = "
    "pyro.sample('{name}_scale', dist.HalfNormal(torch.ones({n})).to_event(1)); {name} = "
    "pyro.deterministic('{name}', {value})."
)
_CODE_OF_FACTOR = "s.unsqueeze(-1) * r"

#: What to write in place of a site whose support has no bijection from the real line.
_ADVICE_BY_SUPPORT: dict[str, str] = {
    "sphere": (
        "Draw an unconstrained vector and divide it by its norm: for a ProjectedNormal, "
        "poutine.reparam(model, {{'{name}': ProjectedNormalReparam()}}) (from pyro.infer.reparam); "
        "for a distribution with density f on the sphere, w = pyro.sample('{name}_normal', "
        "dist.Normal(torch.zeros({n}), 1.0).to_event(1)), {name} = w / w.norm(dim=-1, "
        "keepdim=True), and pyro.factor('{name}_law', log f({name}))."
    ),
    **dict.fromkeys(
        ["positive_definite", "positive_semidefinite"],
        _ADVICE_ON_COVARIANCE.replace("{value}", f"({_CODE_OF_FACTOR}) @ ({_CODE_OF_FACTOR}).mT"),
    ),
    **dict.fromkeys(
        ["lower_cholesky", "softplus_lower_cholesky"],
        _ADVICE_ON_COVARIANCE.replace("{value}", _CODE_OF_FACTOR),
    ),
    **dict.fromkeys(
        ["lower_triangular", "unit_lower_cholesky", "symmetric", "square"],
        "Draw its free entries as one vector, v = pyro.sample('{name}_entries', "
        "dist.Normal(torch.zeros(k), 1.0).to_event(1)), and place them in the matrix, with "
        "{name} = pyro.deterministic('{name}', ...).",
    ),
}
_ADVICE_ON_OTHER_SUPPORTS = (
    "Draw an unconstrained or positive latent and transform it in the model (pyro.deterministic), "
    "or register a bijection with torch.distributions.biject_to.register."
)

#: Their support is said to be the whole line.
_FAMILIES_OF_ANGLES = (torch.distributions.VonMises, dist.SineBivariateVonMises, dist.SineSkewed)


def check_support(name: str, fn: Any) -> None:
    """
    Refuses latent sites that no implicit guide can draw.

    :param str name: of a latent site.
    :param fn: its distribution.
    :raises SiteError: if it is discrete, a point or a distribution of angles, or nothing maps the
        real line one to one on its support; the message says what to write instead.
    """
    _check_is_known(name, fn)
    support = plain_support(own_support(fn))
    try:
        discrete = support.is_discrete
        biject_to(constraints.real if discrete else support)
    except NotImplementedError as error:
        raise no_bijection(name, support, fn.event_shape) from error
    if discrete:
        raise _discrete(name, fn)
    point = fn
    while isinstance(point, torch.distributions.Independent):
        point = point.base_dist
    if isinstance(point, dist.Delta):
        raise SiteError(
            f"latent site {name!r} has a Delta distribution, which has one value and no density to "
            f"learn of. Write pyro.deterministic({name!r}, value) for what is computed."
        )
    circular = circular_part(fn)
    if circular is not None:
        raise SiteError(_circular_message(name, type(circular).__name__, fn.event_shape))


def _discrete(name: str, fn: Any) -> SiteError:
    """The error for a discrete latent, by what could be done with it."""
    if name.endswith(HIDDEN_SUFFIX):
        return SiteError(
            f"site {name!r} is what obs_mask hides of a discrete site ({type(fn).__name__}); an "
            "implicit guide is continuous. A mask in its place leaves out what is missing: with "
            f"poutine.mask(mask=seen): pyro.sample({name.removesuffix(HIDDEN_SUFFIX)!r}, ..., "
            "obs=y), where y has any number at the places that are not seen."
        )
    own = without_events(fn)
    if own is not fn and getattr(own, "has_enumerate_support", False):
        return SiteError(
            f"latent site {name!r} is discrete, a vector of {type(own).__name__} in one event, "
            "which objectives do not sum out. Write its entries in a plate in place of "
            f".to_event(...): with pyro.plate('parts', k): pyro.sample({name!r}, ..., "
            "infer={'enumerate': 'parallel'}); where one datum depends on several of them, give "
            f"each a site of its own, pyro.sample(f'{name}_{{i}}', ...) for i in range(k)."
        )
    if not getattr(fn, "has_enumerate_support", False):
        return SiteError(
            f"latent site {name!r} is discrete, and a {type(fn).__name__} has no finite number of "
            f"values; an implicit guide is continuous. {cut_off(name, fn)}"
        )
    return SiteError(
        f"latent site {name!r} is discrete ({type(fn).__name__}); an implicit guide is "
        "continuous. Mark it infer={'enumerate': 'parallel'} (pyro.infer.config_enumerate does "
        "so for all), and objectives sum it out (https://pyro.ai/examples/enumeration.html), "
        "or hide it with poutine.block(model, "
        f"hide=[{name!r}]) and give it another guide in an AutoGuideList."
    )


def _check_is_known(name: str, fn: Any) -> None:
    """
    Refuses transforms of a vector onto part of the space that others follow.

    ``TransformedDistribution`` states the codomain of the last one, as if all could be reached.

    :raises SiteError: for these.
    """
    within = hidden_vector(fn)
    if within is not None:
        last = type(within).__name__
        raise SiteError(
            f"latent site {name!r} has a distribution whose support is not known: other transforms "
            f"follow {last}, and it states the support of the last one, {fn.support}. Let {last} "
            f"be the last, and compute the rest: a = pyro.sample('{name}_before', ...), "
            f"{name} = pyro.deterministic({name!r}, 2.0 * a + 1.0, "
            f"event_dim={len(fn.event_shape)})."
        )


def cut_off(name: str, fn: Any) -> str:
    """
    Says how a count without a largest value is summed out.

    :param str name: of a latent site.
    :param fn: its distribution, which cannot be enumerated.
    :returns: what to write instead.
    """
    kind = type(fn).__name__
    return (
        "Where it is hardly ever above some number, say 100, write it as one of finitely many, "
        f"which objectives and chains sum out: pyro.sample({name!r}, dist.Categorical(logits="
        f"dist.{kind}(...).log_prob(torch.arange(101.))), infer={{'enumerate': 'parallel'}}), with "
        "[..., None] at parameters that have an entry for each row. Or sum it out in the model: a "
        "Poisson count that is thinned by a Binomial is a Poisson itself."
    )


def circular_part(fn: Any) -> Any:
    """
    Finds the distribution of angles that another one is, or is made of.

    :param fn: a distribution.
    :returns: the distribution of angles; None without one.
    """
    # a subclass may restrict it to one turn
    if isinstance(fn, _FAMILIES_OF_ANGLES) and is_real(fn.support):
        return fn
    for part in ("base_dist", "component_distribution", "component0", "component1"):
        inner = getattr(fn, part, None)
        found = None if inner is None else circular_part(inner)
        if found is not None:
            return found
    return None


def _circular_message(name: str, kind: str, event_shape: Sequence[int]) -> str:
    shape, count = ", ".join(str(size) for size in (*event_shape, 2)), math.prod(event_shape)
    uniform = "math.log(2 * math.pi)" if count == 1 else f"{count} * math.log(2 * math.pi)"
    return (
        f"latent site {name!r} has a {kind} distribution: its density comes back every 2 pi, so "
        "that on the real line, which it calls its support, it is improper, and a guide's spread "
        "would grow without end. Draw two normals and take their angle: "
        f"xy = pyro.sample('{name}_xy', dist.Normal(torch.zeros({shape}), 1.0)"
        f".to_event({len(event_shape) + 1})); {name} = pyro.deterministic('{name}', "
        f"torch.atan2(xy[..., 1], xy[..., 0]), event_dim={len(event_shape)}); and, unless the "
        f"angle is to be uniform, pyro.factor('{name}_prior', prior.log_prob({name}) + {uniform})"
        " with prior the distribution found, in the angle's plates (the normals have the uniform "
        "density of it already)."
    )


def same_support(one: constraints.Constraint, other: constraints.Constraint) -> bool:
    """
    Whether two supports are the same up to batch dimensions and rounding.

    :param one: any support.
    :param other: another; its bounds may have other batch dimensions, or another precision.
    :returns: whether it is of the same kind, with the same bounds.
    """
    one, other = _innermost(one), _innermost(other)
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    names = _ARGUMENTS_OF_CONSTRAINTS.get(_snake(type(one).__name__), ())
    return all(_same_bound(getattr(one, name), getattr(other, name)) for name in names)


def _innermost(support: constraints.Constraint) -> constraints.Constraint:
    support = plain_support(support)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _same_bound(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) and not isinstance(other, Tensor):
        return bool(one == other)
    like = one if isinstance(one, Tensor) else other
    one, other = (torch.as_tensor(x, device=like.device) for x in (one, other))
    floats = [x.dtype for x in (one, other) if x.is_floating_point()]
    eps = max((torch.finfo(dtype).eps for dtype in floats), default=0.0)
    try:
        return bool(torch.isclose(one.double(), other.double(), rtol=8 * eps, atol=0.0).all())
    except RuntimeError:  # they do not broadcast: of another number of rows, told elsewhere
        return True


def is_real(support: constraints.Constraint) -> bool:
    """
    Whether a support is the whole line in each entry.

    :param support: any support.
    :returns: whether it is the whole line in each entry, so that its bijection is the identity.
    """
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


def no_bijection(
    name: str, support: constraints.Constraint, event_shape: Sequence[int]
) -> SiteError:
    """
    What to raise for a latent site with a support that guides cannot serve.

    :param str name: of the site.
    :param support: its support.
    :param event_shape: of its values.
    :returns: the error, which says what to write instead.
    """
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    found = _snake(type(support).__name__)
    n = event_shape[-1] if event_shape else 1
    return SiteError(
        f"latent site {name!r} has the support {found!r}, and no bijection with a known Jacobian "
        "maps the real line on it: no implicit guide serves it. "
        + _ADVICE_BY_SUPPORT.get(found, _ADVICE_ON_OTHER_SUPPORTS).format(name=name, n=n)
    )


def plain_support(support: constraints.Constraint) -> constraints.Constraint:
    """
    Replaces the support of a mixture, which ``biject_to`` does not know, by that of its components.

    :param support: any support.
    :returns: the support, or that of the components.
    """
    if type(support).__name__ == "MixtureSameFamilyConstraint":
        return plain_support(support.base_constraint)  # type: ignore[attr-defined]
    if isinstance(support, constraints.independent):
        base = plain_support(support.base_constraint)
        if base is not support.base_constraint:
            return constraints.independent(base, support.reinterpreted_batch_ndims)
    return support


def keep_inside(support: constraints.Constraint, value: Tensor) -> Tensor:
    """
    Moves what rounding has put on a bound of its support to the next number inside.

    In float32 ``0.1 + exp(-20)`` is 0.1, where a density may be 0, infinite or refused, and which
    no number of the real line is mapped to.

    :param support: of a half-line or an interval, perhaps independent; others change nothing.
    :param torch.Tensor value: what its bijection returned, of any shape.
    :returns: the value, inside, of the same shape.
    """
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    lower, upper = (getattr(support, f"{side}_bound", None) for side in ("lower", "upper"))
    if lower is None and upper is None or not value.is_floating_point():
        return value
    info = torch.finfo(value.dtype)
    least = None if lower is None else lower + _gap(lower, info)
    most = None if upper is None else upper - _gap(upper, info)
    if isinstance(least, Tensor) or isinstance(most, Tensor):
        # torch clamps by two tensors or by two numbers
        bounds = [
            b if b is None or isinstance(b, Tensor) else value.new_tensor(b) for b in (least, most)
        ]
        return value.clamp(*bounds)
    return value.clamp(least, most)


def _gap(bound: Any, info: torch.finfo) -> Any:
    """No less than the distance to the neighbours of a bound."""
    if isinstance(bound, Tensor):
        return (bound.detach().abs() * info.eps).clamp(min=info.tiny)
    return max(abs(bound) * info.eps, info.tiny)


def encode_support(support: constraints.Constraint) -> dict[str, Any]:
    """
    Describes a support by plain values.

    :param support: the support of a continuous sample site.
    :returns: a dict of strings, numbers and tensors; ``{"type": "unknown"}`` for a constraint that
        neither torch nor Pyro defines.
    """
    for name in _singletons():
        if getattr(constraints, name) is support:
            return {"type": name}
    kind = _snake(type(support).__name__)
    if kind in _ARGUMENTS_OF_CONSTRAINTS:
        values = [getattr(support, attribute) for attribute in _ARGUMENTS_OF_CONSTRAINTS[kind]]
        return {"type": kind, "args": [_encode_value(value) for value in values]}
    for name in _singletons():
        if type(getattr(constraints, name)) is type(support):
            return {"type": name}
    return {"type": "unknown", "repr": repr(support)}


def decode_support(code: dict[str, Any], site: str) -> constraints.Constraint:
    """
    The inverse of :func:`encode_support`.

    :param dict code: what it returned.
    :param str site: name of the site, for the message.
    :returns: the support.
    :raises StateError: if the constraint cannot be made without the model.
    """
    kind = code.get("type", "unknown")
    if kind in _ARGUMENTS_OF_CONSTRAINTS:
        values = [decode_support(a, site) if isinstance(a, dict) else a for a in code["args"]]
        made: constraints.Constraint = getattr(constraints, kind)(*values)
        return made
    if kind in _singletons():
        constraint: constraints.Constraint = getattr(constraints, kind)
        return constraint
    raise StateError(
        f"the support of site {site!r} ({code.get('repr', kind)}) cannot be stored by value. Call "
        "the guide once with the model's arguments before load_state_dict, so that it reads the "
        "support from the model."
    )


def map_support(
    support: constraints.Constraint, change: Callable[[Any], Any]
) -> constraints.Constraint:
    """
    The support with ``change`` applied to each of its bounds.

    :param support: any support.
    :param change: from a bound (a number or a tensor) to another.
    :returns: the support with these bounds.
    """
    if type(support).__name__ == "MixtureSameFamilyConstraint":
        return map_support(support.base_constraint, change)  # type: ignore[attr-defined]
    kind = _snake(type(support).__name__)
    if kind not in _ARGUMENTS_OF_CONSTRAINTS:
        return support
    values = [getattr(support, attribute) for attribute in _ARGUMENTS_OF_CONSTRAINTS[kind]]
    if kind == "independent":
        return constraints.independent(map_support(values[0], change), values[1])
    constraint: constraints.Constraint = getattr(constraints, kind)(*map(change, values))
    return constraint


def moved_support(
    support: constraints.Constraint, put: Callable[[Tensor], Tensor]
) -> constraints.Constraint:
    """
    The support with its bounds on the device where a module's tensors go.

    :param support: any support.
    :param put: moves a tensor, as that of ``nn.Module._apply``. What else it does (to another
        dtype) bounds do not follow: they are the model's. Nor do they go where tensors have no
        numbers (``"meta"``), from where nothing would bring them back.
    :returns: the same object where no bound is a tensor: such a support is known by its identity.
    """

    def moved(bound: Any) -> Any:
        there = put(bound) if isinstance(bound, Tensor) else None
        return bound if there is None or there.is_meta else bound.to(there.device)

    if not any(isinstance(bound, Tensor) for bound in bounds_of(support)):
        return support
    return map_support(support, moved)


def bounds_of(support: constraints.Constraint) -> list[Any]:
    """
    The bounds that a support has.

    :param support: any support.
    :returns: numbers and tensors.
    """
    found: list[Any] = []

    def noted(bound: Any) -> Any:
        found.append(bound)
        return bound

    map_support(support, noted)
    return found


def _singletons() -> list[str]:
    return [
        name
        for name, value in vars(constraints).items()
        if isinstance(value, constraints.Constraint) and not name.startswith("_")
    ]


def _encode_value(value: Any) -> Any:
    if isinstance(value, constraints.Constraint):
        return encode_support(value)
    return value.detach().clone() if isinstance(value, Tensor) else value


def _snake(name: str) -> str:
    parts = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return parts.lstrip("_").removesuffix("_constraint")
