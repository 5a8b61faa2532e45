"""Parameters and statistics of a model that were moved after a guide's fit had ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit._few import few_of
from pyro_implicit.handlers.known_call import known_call_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.networks.called_networks import CalledNetworks, names_of
from pyro_implicit.handlers.rows.same_rows import Fingerprint, are_alike, fingerprint

__all__ = [
    "forget_fit",
    "moved_since_fit",
    "remember_fit",
    "replaced_since_fit",
    "share_fit",
    "was_trained",
]

#: of the guide's parameters, looked at to tell whether it was trained since
_MAX_NUMBERS_PER_PARAMETER = 10_000
_MAX_NUMBERS_OF_NETWORKS = 20_000_000  # of a model; larger networks are not looked at
_MAX_NAMES_SHOWN = 4
_WARNING_OF_REPLACEMENT = (
    "this guide has the parameters of another guide of the same class by now, and draws "
    "are of that one's posterior: Pyro's store knows both by one name, and a guide takes "
    "what it finds there. Its own are lost. Fit it again, and write "
    "pyro.clear_param_store() each time before the other of the two is used."
)

_fits: weakref.WeakKeyDictionary[Any, _Fit] = weakref.WeakKeyDictionary()
_trained: weakref.WeakValueDictionary[int, nn.Parameter] = weakref.WeakValueDictionary()


#: the outermost networks that a run calls, and the names of the parameters that it has
_Met = tuple[list[nn.Module], list[str]]


class _Fit:
    """What a model's tensors and a guide's parameters were like when a fit had ended."""

    def __init__(self, guide: Any, run: Callable[[], _Met], are_chains: bool) -> None:
        networks, self._names = run()
        size = sum(value.numel() for network in networks for _, value in _tensors_of(network))
        pairs = zip(names_of(networks), networks, strict=True)
        references = [(n, weakref.ref(one)) for n, one in pairs]
        #: networks that the model calls
        self._networks = references if size <= _MAX_NUMBERS_OF_NETWORKS else []
        before = self._tensors()
        _know_networks(guide, run()[0])
        after = self._tensors()  # what a run moves by itself tells nothing
        self._like = {name: one for name, one in after.items() if are_alike(one, before.get(name))}
        self._guide = _like_parameters(guide)
        self.end = "these chains were run" if are_chains else "the fit of this guide ended"
        self.again = "run them anew" if are_chains else "fit this guide again"
        self._parameters = [weakref.ref(value) for value in _parameters_of(guide)]

    def is_replaced(self, guide: Any) -> bool:
        """Whether the guide has other parameters now: Pyro's take what the store has by a name."""
        now = _parameters_of(guide)
        same = len(now) == len(self._parameters)
        if same and all(one() is v for one, v in zip(self._parameters, now, strict=True)):
            return False
        if _like_parameters(guide) != self._guide:
            return True
        self._parameters = [weakref.ref(value) for value in now]  # its own, loaded anew
        return False

    def moved(self, guide: Any) -> list[str]:
        """Names of tensors that are others now, though the guide is the same."""
        now = self._tensors()
        found = [n for n, one in self._like.items() if n in now and not are_alike(now[n], one)]
        return found if found and _like_parameters(guide) == self._guide else []

    def _tensors(self) -> dict[str, Fingerprint]:
        """What each is like now; those that are gone are left out."""
        store, found = pyro.get_param_store(), {}
        for name in self._names:
            if name in store:
                found[name] = _like(store[name])
        for own, reference in self._networks:
            network = reference()
            for name, value in () if network is None else _tensors_of(network):
                found[f"{name} of {own}"] = _like(value)
        return {name: one for name, one in found.items() if one is not None}


def remember_fit(
    model: Callable[..., Any],
    guide: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    are_chains: bool = False,
) -> None:
    """
    Keeps what the model's parameters, and its networks' statistics, are like at the end of a fit.

    The model is run twice, without leaving a trace. One that cannot be is not remembered, nor is a
    guide that is no module: nobody could tell whether it was trained on since then.

    :param model: a Pyro model.
    :param guide: the guide that was fitted, or chains.
    :param tuple args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :param bool are_chains: whether they are, which nothing trains.
    """
    forget_fit(guide)
    if not (are_chains or isinstance(guide, nn.Module)):
        return
    _trained.update((id(value), value) for value in _parameters_of(guide))
    try:
        _fits[guide] = _Fit(guide, lambda: _met_by(model, args, kwargs), are_chains)
    except Exception:  # what is wrong with a call is told by the call itself
        return


def forget_fit(guide: Any) -> None:
    """
    Forgets the last fit of a guide, since another one begins.

    :param guide: any guide.
    """
    if _fit_of(guide) is not None:
        del _fits[guide]


def was_trained(value: Any) -> bool:
    """
    Tells whether a parameter is that of a guide which ``fit`` has trained in this program.

    :param value: any object.
    :returns: False for a copy of it, and for one that was read from a file.
    """
    return isinstance(value, nn.Parameter) and _trained.get(id(value)) is value


def share_fit(guide: Any, part: Any) -> None:
    """
    Tells that a guide was made of another one, and is of the same fit.

    :param guide: any guide.
    :param part: a guide that draws what it draws, or some of that.
    """
    fit = _fit_of(guide)
    if fit is not None:
        _fits[part] = fit


def moved_since_fit(guide: Any) -> list[str]:
    """
    Tells of tensors of the model, or of the guide, that are others than at the end of its fit.

    :param guide: any guide, one of several guides among them; one that was trained since then, or
        not by ``fit``, knows nothing.
    :returns: texts, each once.
    """
    return list(
        dict.fromkeys(text for one, fit in _fits_in(guide) for text in _described(one, fit))
    )


def replaced_since_fit(guide: Any) -> list[str]:
    """
    Tells of a guide alone, whose draws are of another posterior than at the end of its fit.

    :param guide: any guide.
    :returns: at most one text.
    """
    is_replaced = any(fit.is_replaced(one) for one, fit in _fits_in(guide))
    return [_WARNING_OF_REPLACEMENT] if is_replaced else []


def _described(guide: Any, fit: _Fit) -> list[str]:
    if fit.is_replaced(guide):
        return [_WARNING_OF_REPLACEMENT]
    moved = fit.moved(guide)
    if not moved:
        return []
    return [
        f"{few_of(moved, _MAX_NAMES_SHOWN)} of the model are not what they were when {fit.end}: "
        "something moved them since, such as another fit of the same model, and the values of now "
        "are used. Give each fit a network of its own (copy.deepcopy) and parameters with names of "
        f"their own, or {fit.again}."
    ]


def _fits_in(guide: Any) -> list[tuple[Any, _Fit]]:
    """The fit of a guide, or those of the guides that it is made of."""
    if (fit := _fit_of(guide)) is not None:
        return [(guide, fit)]
    parts = guide.children() if isinstance(guide, nn.Module) else getattr(guide, "guides", ())
    return [pair for part in parts for pair in _fits_in(part)]


def _fit_of(guide: Any) -> _Fit | None:
    try:
        return _fits.get(guide)
    except TypeError:  # what cannot be a key was never one
        return None


def _parameters_of(guide: Any) -> list[nn.Parameter]:
    return list(guide.parameters()) if isinstance(guide, nn.Module) else []


def _know_networks(guide: Any, networks: list[nn.Module]) -> None:
    """The model that a guide was fitted to is the one whose statistics it is saved with."""
    for part in guide.modules() if isinstance(guide, nn.Module) else ():
        known = known_call_of(part)
        if known is not None:
            known.parameters.statistics.take(networks)


@torch.no_grad()
def _met_by(model: Any, args: Any, kwargs: Any) -> _Met:
    with unseen_run(evaluates=True):
        called = CalledNetworks()
        with poutine.trace(param_only=True) as tracer:
            model(*args, **kwargs)
    return called.outermost(), list(tracer.trace.param_nodes)


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that are real numbers."""
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.is_floating_point():
            yield name, value


def _like_parameters(guide: Any) -> list[Fingerprint | None]:
    flat = [value.detach().reshape(-1) for value in _parameters_of(guide)]
    return [_like(one[:_MAX_NUMBERS_PER_PARAMETER]) for one in flat]


def _like(value: Tensor) -> Fingerprint | None:
    return fingerprint((value.detach().reshape(-1),))
