"""Where a call of a model carries its data, so that other data can be put there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_implicit.handlers.pointwise import run_model

__all__ = ["DataPlaces", "find_places"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


class View(NamedTuple):
    """A view of the storage behind one tensor of a call; the tensors are counted in order."""

    tensor: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, value: Tensor) -> Tensor:
        """The view of a tensor that lies in memory like the one of the call."""
        return value.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class DataPlaces:
    """
    The places of the data in a call ``model(*args, **kwargs)``.

    :param tuple args: the caller's arguments.
    :param dict kwargs: the caller's keyword arguments.
    :param dict views: by site, what the model observes: an argument, or a view of one.
    :param dict names: by site, the parameter of the model that was left out, or passed as None (its
        position, if it was passed by that).
    :param lost: sites whose data are in the call, in a form that cannot be found: a function of an
        argument, such as its logarithm.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    views: dict[str, View] = field(default_factory=dict)
    names: dict[str, str | int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def fill(self, data: Mapping[str, Tensor]) -> Call:
        """
        Puts data in the places where the caller's arguments have theirs.

        :param dict data: by site.
        :returns: the arguments with these data in the places of the caller's; the caller's tensors
            are left as they are.
        """
        tensors = _tensors((self.args, self.kwargs))
        copies: dict[tuple[int, torch.dtype], Tensor] = {}
        for site, view in self.views.items():
            key = _key(tensors[view.tensor])
            if key not in copies:
                copies[key] = _copy_of_storage(tensors[view.tensor])
            view.of(copies[key]).copy_(data[site].reshape(view.shape))

        def swap(value: Any) -> Any:
            if _is_plain(value) and _key(value) in copies:
                return _view(0, value).of(copies[_key(value)])
            return value

        args, kwargs = list(_mapped(self.args, swap)), _mapped(self.kwargs, swap)
        for site, place in self.names.items():
            if isinstance(place, int):
                args[place] = data[site]
            else:
                kwargs[place] = data[site]
        return tuple(args), kwargs

    def without_names(self) -> DataPlaces:
        """The places without the parameters that the caller left out."""
        return replace(self, names={})


def find_places(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trial: Mapping[str, Tensor],
) -> DataPlaces:
    """
    Finds the places of a model's arguments that it observes.

    Looks at what the model observes in this call, puts other data where it came from, and keeps the
    places at which the model then observes those.

    Found are arguments that are observed as they are or by a view (a column, a reshape), also
    inside of lists, tuples and dictionaries, copies of them, and a parameter with the name of the
    site that was left out or passed as None.

    :param callable model: a Pyro model.
    :param tuple args: its arguments.
    :param dict kwargs: its keyword arguments.
    :param dict trial: by site, data other than the caller's to try the places with.
    :returns: the places.
    """
    start = DataPlaces(args, kwargs)
    observed = _observed(model, (args, kwargs), trial)
    tensors = _tensors((args, kwargs))
    views: dict[str, View] = {}
    for name, value in observed.items():
        for view in _candidates(value, tensors):
            if _is_observed(model, replace(start, views={name: view}), {name: trial[name]}):
                views[name] = view
                break
    # together: two sites may observe one tensor, which cannot hold the data of both
    if len(views) > 1:
        alone = {name: trial[name] for name in views}
        views = views if _is_observed(model, replace(start, views=views), alone) else {}
    left_out = {name: _left_out(model, name, args, kwargs) for name in trial.keys() - views.keys()}
    names = {n: p for n, p in left_out.items() if p is not None and n not in observed}
    found = {name: trial[name] for name in (*views, *names)}
    if names and not _is_observed(model, replace(start, views=views, names=names), found):
        names = {}
    plain = (type(None), bool, int, float, str)  # arguments that cannot be the data
    has_data = any(not isinstance(value, plain) for value in _leaves((args, kwargs)))
    lost = tuple(sorted(observed.keys() - views.keys())) if has_data else ()
    return DataPlaces(args, kwargs, views, names, lost)


def _observed(model: Callable[..., Any], call: Call, names: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the model observes at these sites in this call."""
    found: dict[str, Tensor] = {}

    def visit(site: Any) -> None:
        if site["is_observed"] and site["name"] in names:
            found[site["name"]] = site["value"]

    run_model(model, *call, visit)
    return found


def _is_observed(
    model: Callable[..., Any], places: DataPlaces, trial: Mapping[str, Tensor]
) -> bool:
    """Whether the model observes exactly the data that were put in their places."""
    found = _observed(model, places.fill(trial), trial)
    return all(name in found and _equal(found[name], value) for name, value in trial.items())


def _candidates(value: Tensor, tensors: list[Tensor]) -> Iterator[View]:
    """Views of the arguments that may be what is observed: itself, or an equal tensor."""
    overlaps = any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))
    for number, tensor in enumerate(tensors):
        if not overlaps and _key(tensor) == _key(value):
            yield _view(number, value)
            break
    for number, tensor in enumerate(tensors):
        if tensor.numel() == value.numel() and _equal(tensor.reshape(value.shape), value):
            with suppress(RuntimeError):  # no view of it has this shape
                yield _view(number, tensor.view(value.shape))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.is_complex() or other.is_complex():
        return False
    one, other = one.double(), other.to(one.device).double()
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _key(value: Tensor) -> tuple[int, torch.dtype]:
    return value.untyped_storage().data_ptr(), value.dtype


def _view(number: int, value: Tensor) -> View:
    return View(number, tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))


def _copy_of_storage(value: Tensor) -> Tensor:
    """All that lies behind a tensor, as a flat one."""
    storage = value.untyped_storage().clone()
    flat = torch.empty(0, dtype=value.dtype, device=value.device)
    return flat.set_(storage, 0, (storage.nbytes() // value.element_size(),), (1,))


def _left_out(
    model: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | int | None:
    """The parameter of this name if it is left out or None; its position if passed by that."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # a wrapper that hides the signature
        return None
    parameter = signature.parameters.get(name)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if parameter is None or parameter.kind in variadic or bound.arguments.get(name) is not None:
        return None
    position = list(signature.parameters).index(name)
    if name not in kwargs and position < len(args):
        return position
    return None if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else name


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _tensors(call: Any) -> list[Tensor]:
    return [value for value in _leaves(call) if _is_plain(value)]


def _leaves(value: Any) -> Iterator[Any]:
    """What is inside of lists, tuples and dictionaries."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nesting with every leaf replaced; containers that hold none are kept."""
    if type(value) is dict:
        return {name: _mapped(one, function) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(one, function) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(_mapped(one, function) for one in value))
    return function(value)
